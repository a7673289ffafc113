/* The data of tensors as JSON, as `encode_data` in `app/protocol/http/json_tensors.py` writes it. */
#include "json_requests.h"

#include "json.h"

#include <math.h>
#include <string.h>

enum { UNLOCKED_FROM = 8 << 10, FIRST_EXPONENT = 21, LAST_SMALL = -5, ROOM = 10 }; /* of a character, a quote and a comma */

/* Bytes of the longest value and a comma, of strings those of a byte; 0: it is not written. */
static const unsigned char widths[DATATYPES] = {6, 4, 6, 11, 21, 5, 7, 12, 21, 0, 0, 26, 26, 6};

/* Write digits with a point behind the first `places`, of which there may be none, or more than digits. */
static char *write_fixed(char *to, const char *digits, int count, int places)
{
    int known = places < 0 ? 0 : places < count ? places : count;
    to = known > 0 ? put_bytes(to, digits, (size_t)known) : put_bytes(to, "0", 1);
    for (int i = known; i < places; i++)
        *to++ = '0';
    *to++ = '.';
    for (int i = places; i < 0; i++)
        *to++ = '0';
    return known < count ? put_bytes(to, digits + known, (size_t)(count - known)) : put_bytes(to, "0", 1);
}

/* Write a number as rapidjson does, which Triton uses, but for exponents from -6 on. */
static char *write_real(char *to, double value)
{
    int exponent;
    char digits[MAX_DIGITS];
    if (isnan(value))
        return put_bytes(to, "NaN", 3);
    if (signbit(value))
        *to++ = '-';
    if (isinf(value))
        return put_bytes(to, "Infinity", 8);
    if (value == 0)
        return put_bytes(to, "0.0", 3);
    int count = (int)(write_digits(digits, shortest_decimal(value, &exponent)) - digits), places = exponent + count;
    while (count > 1 && digits[count - 1] == '0')
        count--;
    if (places > LAST_SMALL && places <= FIRST_EXPONENT)
        return write_fixed(to, digits, count, places);
    to = count > 1 ? write_fixed(to, digits, count, 1) : put_bytes(to, digits, 1);
    to = put_bytes(to, "e-", places <= 0 ? 2 : 1);
    return write_digits(to, (uint64_t)abs(places - 1));
}

static char *write_value(char *to, enum datatype type, const char *from)
{
    int rest = 64 - 8 * datatype_sizes[type];
    uint64_t bits = 0;
    float single;
    double real;
    memcpy(&bits, from, datatype_sizes[type]);
    if (type == BOOL)
        return bits != 0 ? put_bytes(to, "true", 4) : put_bytes(to, "false", 5);
    if (type >= INT8 && type <= INT64 && bits << rest >> 63) {
        *to++ = '-';
        bits = (0 - (bits << rest)) >> rest;
    }
    if (type <= INT64)
        return write_digits(to, bits);
    memcpy(&single, from, sizeof single);
    memcpy(&real, &bits, sizeof real);
    return write_real(to, type == FP32 ? (double)single : real);
}

char *write_quoted(char *to, const char *end, const unsigned char *at, size_t size)
{
    static const char escaped[] = "\"\\\b\f\n\r\t", codes[] = "\"\\bfnrt";
    const unsigned char *last = at + size;
    if (end - to < ROOM)
        return NULL;
    for (*to++ = '"'; at < last; at += size) {
        size = *at < 0x80 ? 1 : long_character(at, last);
        if (size == 0 || end - to < ROOM)
            return NULL;
        if (*at >= ' ' && *at != '"' && *at != '\\') {
            to = put_bytes(to, at, size);
            continue;
        }
        const char *found = *at == '\0' ? NULL : strchr(escaped, *at);
        to += found == NULL ? sprintf(to, "\\u%04x", *at) : sprintf(to, "\\%c", codes[found - escaped]);
    }
    *to++ = '"';
    return to;
}

struct data {
    enum datatype type;
    size_t count, size;
    const char *bytes;
};

/* Write strings, each of which has its length before it, and a comma behind it. Another process may change them. */
static char *write_strings(char *to, const char *end, const struct data *data)
{
    const char *at = data->bytes, *last = at + data->size;
    for (size_t i = 0; i < data->count; i++) {
        uint32_t size;
        if (last - at < (ptrdiff_t)sizeof size)
            return NULL;
        memcpy(&size, at, sizeof size);
        at += sizeof size;
        to = size > (size_t)(last - at) ? NULL : write_quoted(to, end, (const unsigned char *)at, size);
        if (to == NULL)
            return NULL;
        *to++ = ',';
        at += size;
    }
    return at == last ? to : NULL;
}

/* Write an array; NULL where Python has to, or where there is no room. */
static char *write_data(char *to, const char *end, const struct data *data)
{
    const char *start = to;
    *to++ = '[';
    if (data->type == BYTES)
        to = write_strings(to, end, data);
    else
        for (size_t i = 0; i < data->count; i++, *to++ = ',')
            to = write_value(to, data->type, data->bytes + i * datatype_sizes[data->type]);
    if (to == NULL)
        return NULL;
    to -= to - start > 1; /* the last comma */
    return put_bytes(to, "]", 1);
}

/* Return what is written into so many bytes; NULL, perhaps with an error, where Python has to write it. */
static PyObject *write_into(size_t room, const struct data *data)
{
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room);
    if (made == NULL)
        return NULL;
    char *start = PyBytes_AS_STRING(made), *end;
    PyThreadState *others = data->size <= UNLOCKED_FROM ? NULL : PyEval_SaveThread();
    end = write_data(start, start + room, data);
    if (others != NULL)
        PyEval_RestoreThread(others);
    if (end == NULL)
        Py_CLEAR(made);
    else
        _PyBytes_Resize(&made, end - start);
    return made;
}

PyObject *json_data(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    const char *name;
    Py_ssize_t count;
    Py_buffer bytes;
    PyObject *made = NULL;
    if (!PyArg_ParseTuple(arguments, "sny*:json_data", &name, &count, &bytes))
        return NULL;
    struct data data = {.count = (size_t)count, .size = (size_t)bytes.len, .bytes = bytes.buf};
    while (data.type < DATATYPES && strcmp(name, datatype_names[data.type]) != 0)
        data.type++;
    int is_written = data.type < DATATYPES && widths[data.type] > 0 && data.count <= data.size; /* negative ones are large */
    if (is_written && (data.type == BYTES || data.size == data.count * datatype_sizes[data.type]))
        made = write_into((data.type == BYTES ? data.size : data.count) * widths[data.type] + 2 * ROOM, &data);
    PyBuffer_Release(&bytes);
    return made != NULL || PyErr_Occurred() ? made : Py_NewRef(Py_None);
}
