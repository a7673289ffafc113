/* Access to the slots of Python classes: `__slots__`, and the fields of msgspec structs. */
#include "module.h"

#include "structmember.h"

/* Return where the instances of a type have a slot; -1 with an error where they have none of that name. */
static inline Py_ssize_t slot_of(PyTypeObject *type, const char *name)
{
    PyObject *member = PyObject_GetAttrString((PyObject *)type, name);
    if (member == NULL)
        return -1;
    Py_ssize_t offset = -1;
    if (Py_IS_TYPE(member, &PyMemberDescr_Type) && PyType_IsSubtype(type, PyDescr_TYPE(member)) &&
        ((PyMemberDescrObject *)member)->d_member->type == T_OBJECT_EX)
        offset = ((PyMemberDescrObject *)member)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%R has no slot '%s'", type, name);
    Py_DECREF(member);
    return offset;
}

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
