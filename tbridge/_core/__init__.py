"""The native core: DLPack handles, the ledger of leases, cached plans served natively."""

try:
    from tbridge._core._native import (
        BY_ARRAY,
        BY_CAPSULE,
        BY_EXCHANGE,
        Handle,
        Lease,
        Memory,
        array,
        capsule,
        clean_bools,
        close_doors,
        dtypes,
        exchange,
        export,
        forget,
        framework,
        from_array,
        leases,
        memory,
        options,
        passed,
        prefer_huge_pages,
        read,
        recode,
        remember,
        restrictions,
        signature,
        source_door,
        suspend,
        target_door,
        view,
        warm,
    )
except ModuleNotFoundError as error:
    if error.name != "tbridge._core._native":
        raise
    raise ImportError(
        "tbridge's native core is not built for this Python; install tbridge with "
        "`pip install .` (it needs a C compiler, such as gcc or clang), and do not run it "
        "from an unbuilt source folder"
    ) from error

__all__ = [
    "BY_ARRAY",
    "BY_CAPSULE",
    "BY_EXCHANGE",
    "Handle",
    "Lease",
    "Memory",
    "array",
    "capsule",
    "clean_bools",
    "close_doors",
    "dtypes",
    "exchange",
    "export",
    "forget",
    "framework",
    "from_array",
    "leases",
    "memory",
    "options",
    "passed",
    "prefer_huge_pages",
    "read",
    "recode",
    "remember",
    "restrictions",
    "signature",
    "source_door",
    "suspend",
    "target_door",
    "view",
    "warm",
]
