"""Declared shares of GPU memory: pure functions from the facts of a process to its limits.

Facts (`inspector` reads them) ─┬─ env · flags · script · rc files · agreements ──► Candidate: one statement, no GPU yet
                                ├─ frameworks ──► the frameworks that the process uses
                                └─ visible_devices ──► the GPU that an ordinal means
                                        resolver: all three ──► model.Declared
"""
