"""Declared shares of GPU memory: pure functions that compute a process's limits from its facts.

Facts (`inspector` reads them) ─┬─ env · flags · script · rc files · agreements ──► Candidate: one statement, no GPU yet
                                ├─ frameworks ──► the frameworks that the process uses
                                └─ visible_devices ──► the GPU that an ordinal means
                                        resolver: all three ──► model.Declared
                                        contradictions: corrects it where NVML lists the process elsewhere
"""
