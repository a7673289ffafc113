/* A copy from or to a mapped file that another process may shorten meanwhile.

An access behind the end of a mapped file is a SIGBUS. While a thread copies, that signal ends the copy instead of the
process; at any other time, or for any other address, it does what it would have done without this file. */
#include <stddef.h>

/* Make the handler of SIGBUS ours, unless it is: another library may have replaced it since the last call. The caller
has the GIL. Returns 0, or -1 with `errno`. */
int guard_copies(void);

/* Copy `nbytes`, of which one side lies in the mapping. Needs `guard_copies` before, and no GIL.
Returns 0, or -1 when the mapping has no such bytes: then some of them may have been copied. */
int guarded_copy(void *to, const void *from, size_t nbytes, const void *mapping, size_t mapped);
