"""Only the compiled record kernel lives here; everything else is in pyproject.toml.

The extension is optional: where no compiler is found the install succeeds and the
pure-Python twin serves. `ottla --version` says which one is in use.
"""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "ottla.records._kernel",
            sources=["src/ottla/records/_kernel.c"],
            depends=sorted(glob("src/ottla/records/_kernel*.h")),
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
