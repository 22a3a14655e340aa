"""Record batches of magic 2: the unit that the log stores and the wire carries.

The broker reads and patches batch headers (`batch`); whoever needs what is inside goes through `record`,
which sits on one kernel (`kernel`) compiled from C or, where no compiler was found, its Python twin.
Everything here is pure: bytes in, bytes out, no clock, no files, no state at run time.
"""
