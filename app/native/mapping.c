/* The type `Mapping`: a file that its owner may shorten or remove at any time, mapped. */
#include "module.h"
#include "guarded_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Copies of at least this size let other threads run; waiting for the GIL again can take longer than a small one. */
#define RELEASE_BYTES (1 << 20)

typedef struct {
    PyObject_HEAD
    int descriptor;
    char *start;
    size_t nbytes;
} Mapping;

static PyObject *mapping_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"descriptor", NULL};
    int descriptor;
    struct stat status;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "i:Mapping", names, &descriptor))
        return NULL;
    Mapping *self = (Mapping *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->start = MAP_FAILED;
    self->descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (self->descriptor >= 0 && guard_copies() == 0 && fstat(self->descriptor, &status) == 0) {
        self->nbytes = (size_t)status.st_size;
        self->start = mmap(NULL, self->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, self->descriptor, 0);
    }
    if (self->start == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void mapping_dealloc(PyObject *object)
{
    Mapping *self = (Mapping *)object;
    PyTypeObject *type = Py_TYPE(self);
    if (self->start != MAP_FAILED)
        munmap(self->start, self->nbytes);
    if (self->descriptor >= 0)
        close(self->descriptor);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Whether the file still has a name, and bytes up to `end`. */
static int exists(const Mapping *self, size_t end)
{
    struct stat status;
    return fstat(self->descriptor, &status) == 0 && status.st_nlink > 0 && (size_t)status.st_size >= end;
}

static int copy(Mapping *self, size_t offset, Py_buffer *data, int writes)
{
    size_t nbytes = (size_t)data->len;
    char *place = self->start + offset;
    void *to = writes ? place : data->buf;
    const void *from = writes ? data->buf : place;
    int failed;
    if (guard_copies() < 0)
        return 0;
    if (nbytes < RELEASE_BYTES)
        return guarded_copy(to, from, nbytes, self->start, self->nbytes) == 0;
    Py_BEGIN_ALLOW_THREADS
    failed = guarded_copy(to, from, nbytes, self->start, self->nbytes);
    Py_END_ALLOW_THREADS
    return !failed;
}

static PyObject *transfer(Mapping *self, PyObject *arguments, int writes)
{
    Py_buffer data;
    Py_ssize_t offset;
    if (!PyArg_ParseTuple(arguments, writes ? "y*n" : "w*n", &data, &offset))
        return NULL;
    size_t end = (size_t)offset + (size_t)data.len;
    int done = offset >= 0 && end <= self->nbytes && (!writes || exists(self, end));
    /* Behind a new end within the last page there are zeros instead of a signal. */
    done = done && copy(self, (size_t)offset, &data, writes) && exists(self, end);
    PyBuffer_Release(&data);
    return PyBool_FromLong(done);
}

static PyObject *mapping_read(PyObject *self, PyObject *arguments)
{
    return transfer((Mapping *)self, arguments, 0);
}

static PyObject *mapping_write(PyObject *self, PyObject *arguments)
{
    return transfer((Mapping *)self, arguments, 1);
}

static PyObject *mapping_linked(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(exists((Mapping *)self, 0));
}

static PyMethodDef methods[] = {
    {"read", mapping_read, METH_VARARGS, NULL},
    {"write", mapping_write, METH_VARARGS, NULL},
    {0},
};

static PyGetSetDef properties[] = {{"linked", mapping_linked, NULL, NULL, NULL}, {0}};

static PyType_Slot slots[] = {
    {Py_tp_new, mapping_new},
    {Py_tp_dealloc, mapping_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

static PyType_Spec specification = {
    .name = "app.native.extension.Mapping",
    .basicsize = sizeof(Mapping),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

int add_mapping(PyObject *module)
{
    return add_type(module, &specification, NULL);
}
