"""What a process said it would take, from facts to declarations. Pure functions: nothing here reads the machine.

Facts (evidence/ reads them) ──┬─ env · flags · script · rc · agreed ──► Claim: one statement, no GPU yet
                               ├─ frameworks ──► which of them can be using it
                               └─ devices ─────► which GPU an ordinal means
                                        resolver: all three ──► declarations.Declared
"""
