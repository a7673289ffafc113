/* The parts of the extension; each adds its types and functions to the module. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Each returns 0, or -1 with a Python error. */
int add_mapping(PyObject *module);
int add_messages(PyObject *module);
int add_ends(PyObject *module);
