/* The module `app.native.extension`. */
#include "module.h"

struct texts texts;

static int make_texts(void)
{
#define MAKE_TEXT(field, text) texts.field = PyUnicode_InternFromString(text);
    EACH_TEXT(MAKE_TEXT)
    return PyErr_Occurred() ? -1 : 0;
}

int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **kept)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    int added = type == NULL ? -1 : PyModule_AddType(module, type);
    if (kept != NULL)
        *kept = type;
    else
        Py_XDECREF(type);
    return added;
}

static int execute(PyObject *module)
{
    if (PyModule_AddStringConstant(module, "SOURCES", SOURCES) < 0)
        return -1;
    if (make_texts() < 0 || add_calls(module) < 0 || add_strings(module) < 0 || add_mapping(module) < 0 || add_messages(module) < 0)
        return -1;
    return add_ends(module) < 0 || add_json(module) < 0 || add_http_requests(module) < 0 || add_counted(module) < 0 ? -1 : 0;
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
