/* The extension module: puts the parts together. */
#define TBRIDGE_IMPORTS_NUMPY
#include "core.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tbridge._core._native",
    .m_doc = "The native core of tbridge: DLPack, leases, and cached plans served natively.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__native(void) {
  import_array();
  PyObject *module = PyModule_Create(&definition);
  if (module == NULL)
    return NULL;
  if (tb_ledger_init(module) < 0 || tb_handle_init(module) < 0 || tb_lend_init(module) < 0 ||
      tb_memory_init(module) < 0 || tb_probe_init(module) < 0 || tb_warm_init(module) < 0) {
    Py_DECREF(module);
    return NULL;
  }
  return module;
}
