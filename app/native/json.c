/* JSON: objects, arrays and strings. */
#include "json.h"

#include <string.h>

enum { MAX_DEPTH = 64 };

int is_text(struct text text, const char *word)
{
    size_t size = strlen(word);
    return text.size == size && memcmp(text.start, word, size) == 0;
}

void skip_space(struct cursor *from)
{
    while (from->at < from->end && (*from->at == ' ' || *from->at == '\n' || *from->at == '\r' || *from->at == '\t'))
        from->at++;
}

int take(struct cursor *from, char character)
{
    skip_space(from);
    if (!next_is(from, character))
        return 0;
    from->at++;
    return 1;
}

size_t long_character(const unsigned char *at, const unsigned char *end)
{
    static const struct {
        unsigned char first, last, low, high, size;
    } ranges[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
                  {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
                  {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        if (*at < ranges[i].first || *at > ranges[i].last)
            continue;
        size_t size = ranges[i].size;
        if ((size_t)(end - at) < size || at[1] < ranges[i].low || at[1] > ranges[i].high)
            return 0;
        for (size_t j = 2; j < size; j++)
            if ((at[j] & 0xc0) != 0x80)
                return 0;
        return size;
    }
    return 0;
}

int read_text(struct cursor *from, struct text *text)
{
    if (!take(from, '"'))
        return 0;
    const unsigned char *at = (const unsigned char *)from->at, *end = (const unsigned char *)from->end;
    while (at < end && *at != '"') {
        size_t size = *at < 0x80 ? *at >= ' ' && *at != '\\' : long_character(at, end);
        if (size == 0)
            return 0;
        at += size;
    }
    if (at == end)
        return 0;
    text->start = from->at;
    text->size = (size_t)((const char *)at - from->at);
    from->at = (const char *)at + 1;
    return 1;
}

int read_bool(struct cursor *from, int *value)
{
    skip_space(from);
    *value = next_is(from, 't');
    size_t size = *value ? 4 : 5;
    if ((size_t)(from->end - from->at) < size || memcmp(from->at, *value ? "true" : "false", size) != 0)
        return 0;
    from->at += size;
    return 1;
}

int skip_array(struct cursor *from)
{
    int depth = 0, quoted = 0;
    skip_space(from);
    if (!next_is(from, '['))
        return 0;
    for (; from->at < from->end; from->at++) {
        char character = *from->at;
        if (character == '\\')
            from->at++; /* whatever it is */
        else if (character == '"')
            quoted = !quoted;
        else if (!quoted && (character == '[' || character == ']'))
            depth += character == '[' ? 1 : -1;
        if (depth == 0) {
            from->at++;
            return 1;
        }
    }
    return 0;
}

int next_member(struct cursor *from, int *first, struct text *key)
{
    if (*first && !take(from, '{'))
        return -1;
    if (take(from, '}'))
        return 0;
    if (!*first && !take(from, ','))
        return -1;
    *first = 0;
    return read_text(from, key) && take(from, ':') ? 1 : -1;
}

int next_element(struct cursor *from, int *first)
{
    if (*first && !take(from, '['))
        return -1;
    int is_first = *first;
    *first = 0;
    if (take(from, ']'))
        return 0;
    return is_first || take(from, ',') ? 1 : -1;
}

/* Go to the next value of nested arrays: 1, 0 at the end of the outermost, -1 for no array. `follows`: a value was read,
or an array ended. */
static int next_leaf(struct cursor *from, int *depth, int *follows)
{
    for (;;) {
        if (take(from, ']')) {
            *follows = 1;
            if (--*depth <= 0)
                return *depth == 0 ? 0 : -1;
            continue;
        }
        if (*follows && !take(from, ','))
            return -1;
        int opened = 0;
        for (*follows = 0; take(from, '['); opened++)
            if (++*depth > MAX_DEPTH)
                return -1;
        skip_space(from);
        if (!next_is(from, ']'))
            return *depth > 0 ? 1 : -1;
        if (!opened) /* behind a comma, or before any array */
            return -1;
    }
}

int read_values(struct cursor *from, enum datatype type, size_t count, char *target)
{
    int depth = 0, follows = 0, found;
    size_t read = 0;
    while ((found = next_leaf(from, &depth, &follows)) == 1) {
        if (read == count || !read_value(from, type, target + read * datatype_sizes[type]))
            return 0;
        follows = 1;
        read++;
    }
    return found == 0 && read == count;
}

/* Read four digits of base 16; returns -1 for others. */
static int read_code(struct cursor *from)
{
    int code = 0;
    for (int i = 0; i < 4; i++) {
        int next = from->at < from->end ? *from->at++ : 0, digit = next - '0', letter = (next | ' ') - 'a';
        if (!(digit >= 0 && digit <= 9) && !(letter >= 0 && letter <= 5))
            return -1;
        code = code * 16 + (digit <= 9 ? digit : letter + 10);
    }
    return code;
}

/* Write a character as UTF-8; returns the end. */
static char *write_character(char *at, int code)
{
    if (code < 0x80) {
        *at++ = (char)code;
        return at;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *at++ = (char)(0xff << (7 - more) | code >> 6 * more);
    while (more-- > 0)
        *at++ = (char)(0x80 | (code >> 6 * more & 0x3f));
    return at;
}

/* Write the character behind a backslash; returns the end, NULL for none. */
static char *write_escaped(struct cursor *from, char *at)
{
    static const char codes[] = "\"\\/bfnrt", characters[] = "\"\\/\b\f\n\r\t";
    char next = from->at < from->end ? *from->at++ : '\0';
    const char *simple = next == '\0' ? NULL : strchr(codes, next);
    if (simple != NULL) {
        *at = characters[simple - codes];
        return at + 1;
    }
    int code = next == 'u' ? read_code(from) : -1;
    if (code >= 0xd800 && code < 0xdc00) { /* the first half of a pair */
        int follows = from->end - from->at > 1 && from->at[0] == '\\' && from->at[1] == 'u';
        from->at += 2 * follows;
        int second = follows ? read_code(from) : -1;
        code = second >= 0xdc00 && second < 0xe000 ? 0x10000 + ((code - 0xd800) << 10) + second - 0xdc00 : -1;
    } else if (code >= 0xdc00 && code < 0xe000) {
        return NULL;
    }
    return code < 0 ? NULL : write_character(at, code);
}

/* Write a string's bytes, of which there are no more than it has; returns the end, NULL where it is none. */
static char *write_string(struct cursor *from, char *at)
{
    if (!take(from, '"'))
        return NULL;
    while (from->at < from->end && *from->at != '"') {
        const unsigned char *next = (const unsigned char *)from->at, *end = (const unsigned char *)from->end;
        if (*next == '\\') {
            from->at++;
            at = write_escaped(from, at);
            if (at == NULL)
                return NULL;
            continue;
        }
        size_t size = *next < 0x80 ? *next >= ' ' : long_character(next, end);
        if (size == 0)
            return NULL;
        memcpy(at, next, size);
        at += size;
        from->at += size;
    }
    return take(from, '"') ? at : NULL;
}

int read_strings(struct cursor *from, char *target, size_t *size)
{
    int depth = 0, follows = 0, found;
    char *at = target;
    while ((found = next_leaf(from, &depth, &follows)) == 1) {
        char *end = write_string(from, at + 4);
        if (end == NULL || end - at - 4 > UINT32_MAX)
            return 0;
        uint32_t length = (uint32_t)(end - at - 4);
        memcpy(at, &length, sizeof length);
        at = end;
        follows = 1;
    }
    *size = (size_t)(at - target);
    return found == 0;
}
