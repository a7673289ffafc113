/* The parts of the extension; each adds its types and functions to the module. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Return where the instances of a type have a field; -1 with an error where it is no slot. */
Py_ssize_t named_offset(PyTypeObject *type, const char *name);

/* Each returns 0, or -1 with a Python error. */
int add_mapping(PyObject *module);
int add_messages(PyObject *module);
int add_ends(PyObject *module);
int add_http_patterns(PyObject *module);
int add_calls(PyObject *module);
int add_infer_requests(PyObject *module);
