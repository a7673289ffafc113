/* Elements of BYTES tensors, each behind its length: `app/core/datatypes.py` has them, and what is wrong with them. */
#include "module.h"

#include <string.h>

Py_ssize_t next_string(const unsigned char **at, const unsigned char *end, const unsigned char **element)
{
    const unsigned char *from = *at;
    Py_ssize_t left = end - from - 4;
    Py_ssize_t size = left < 0 ? 0 : from[0] | from[1] << 8 | from[2] << 16 | (Py_ssize_t)from[3] << 24;
    *element = from + 4;
    *at = size > left ? from : from + 4 + size;
    return size > left ? -1 : size;
}

/* Return the elements, as text or as bytes; NULL with an error, or without one where they are malformed. */
static PyObject *split(const unsigned char *at, const unsigned char *end, int is_text)
{
    const unsigned char *element;
    PyObject *list = PyList_New(0);
    while (list != NULL && at < end) {
        Py_ssize_t size = next_string(&at, end, &element);
        PyObject *item = NULL;
        if (size >= 0)
            item = is_text ? PyUnicode_DecodeUTF8((const char *)element, size, NULL)
                           : PyBytes_FromStringAndSize((const char *)element, size);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *split_strings(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer data;
    int is_text;
    if (!PyArg_ParseTuple(arguments, "y*p", &data, &is_text))
        return NULL;
    PyObject *list = split(data.buf, (const unsigned char *)data.buf + data.len, is_text);
    PyBuffer_Release(&data);
    if (list == NULL && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_UnicodeError))
        PyErr_Clear();
    return list != NULL || PyErr_Occurred() ? list : Py_NewRef(Py_None);
}

/* Return the bytes of an element; NULL, without an error, for one that has none plainly. */
static const char *bytes_of(PyObject *element, Py_ssize_t *size)
{
    const char *bytes = NULL;
    if (PyBytes_CheckExact(element)) {
        bytes = PyBytes_AS_STRING(element);
        *size = PyBytes_GET_SIZE(element);
    } else if (PyUnicode_CheckExact(element)) {
        bytes = PyUnicode_AsUTF8AndSize(element, size);
        PyErr_Clear(); /* of a lone surrogate */
    }
    return bytes != NULL && *size <= UINT32_MAX ? bytes : NULL;
}

static PyObject *join_strings(PyObject *Py_UNUSED(module), PyObject *list)
{
    Py_ssize_t total = 0, size, count = PyList_CheckExact(list) ? PyList_GET_SIZE(list) : -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (bytes_of(PyList_GET_ITEM(list, i), &size) == NULL || size > PY_SSIZE_T_MAX - 4 - total)
            Py_RETURN_NONE;
        total += 4 + size;
    }
    PyObject *joined = count < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize(NULL, total);
    for (Py_ssize_t i = 0; joined != NULL && i < count; i++) {
        const char *bytes = bytes_of(PyList_GET_ITEM(list, i), &size);
        char *to = PyBytes_AS_STRING(joined) + PyBytes_GET_SIZE(joined) - total;
        for (int byte = 0; byte < 4; byte++)
            to[byte] = (char)(size >> 8 * byte);
        memcpy(to + 4, bytes, (size_t)size);
        total -= 4 + size;
    }
    return joined;
}

static PyMethodDef functions[] = {
    {"split_strings", split_strings, METH_VARARGS, "Return the elements of a BYTES tensor."},
    {"join_strings", join_strings, METH_O, "Return the bytes of a BYTES tensor of these elements."},
    {NULL, NULL, 0, NULL},
};

int add_strings(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
