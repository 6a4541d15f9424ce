"""Build the native core. Everything else about the package is in pyproject.toml."""

import os
import sys

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

COMPILER_HELP = """
tbridge's native core could not be compiled. It needs a C11 compiler and Python's headers:
  Debian, Ubuntu   apt install gcc python3-dev
  Fedora           dnf install gcc python3-devel
  macOS            xcode-select --install
  Windows          Visual Studio Build Tools, "Desktop development with C++"
"""


class BuildCore(build_ext):
    """Compile, and name the missing package when there is no compiler."""

    def build_extension(self, ext):
        if self.compiler.compiler_type == "msvc":
            ext.extra_compile_args = ["/std:c11", "/O2", "/W3"]
            strict = ["/WX"]
        else:
            ext.extra_compile_args = [
                "-std=gnu11",
                "-O3",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
            ]
            strict = ["-Werror"]
        if os.environ.get("TBRIDGE_STRICT") == "1":  # warnings are errors where we build
            ext.extra_compile_args += strict
        ext.extra_compile_args += os.environ.get("TBRIDGE_CFLAGS", "").split()
        ext.extra_link_args = os.environ.get("TBRIDGE_LDFLAGS", "").split()
        try:
            super().build_extension(ext)
        except CompileError:
            print(COMPILER_HELP, file=sys.stderr)
            raise


SOURCES = ("module", "ledger", "handle", "lend", "memory", "probe", "warm")

setup(
    cmdclass={"build_ext": BuildCore},
    ext_modules=[
        Extension(
            "tbridge._core._native",
            [f"tbridge/_core/{name}.c" for name in SOURCES],
            depends=["tbridge/_core/core.h", "tbridge/_core/dlpack.h"],
            include_dirs=[numpy.get_include()],
        )
    ],
)
