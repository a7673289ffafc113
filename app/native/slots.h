/* Access to the slots of Python classes: `__slots__`, and the fields of msgspec structs. */
#include "module.h"

/* Return a value, borrowed; NULL where there is none. */
static inline PyObject *slot(PyObject *object, Py_ssize_t offset)
{
    return *(PyObject **)((char *)object + offset);
}

/* Set a value, whose reference is taken over. */
static inline void set_slot(PyObject *object, Py_ssize_t offset, PyObject *value)
{
    PyObject **place = (PyObject **)((char *)object + offset), *old = *place;
    *place = value;
    Py_XDECREF(old);
}

/* Read an int that fits; return 0 for anything else. */
static inline int get_number(PyObject *value, long long *number)
{
    int overflow = 1;
    *number = value != NULL && PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
    return !overflow;
}
