/* The module `app.native.extension`. */
#include "module.h"

static int execute(PyObject *module)
{
    if (PyModule_AddStringConstant(module, "SOURCES", SOURCES) < 0)
        return -1;
    if (add_calls(module) < 0 || add_strings(module) < 0 || add_mapping(module) < 0 || add_messages(module) < 0)
        return -1;
    return add_ends(module) < 0 || add_json(module) < 0 || add_http_requests(module) < 0 ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "extension",
    .m_doc = "The compiled part of the data plane.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit_extension(void)
{
    return PyModuleDef_Init(&definition);
}
