package lifecycle

import "strings"

// EmbedThread reports whether a thread belongs to the embed API, by its created_by:
// embed:eu:<end_user_id> or embed:vid:<visitor_id> (service.md, Thread, run, step).
func EmbedThread(createdBy string) bool { return strings.HasPrefix(createdBy, "embed:") }
