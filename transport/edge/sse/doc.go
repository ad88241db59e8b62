// Package sse keeps the open event streams of one node.
//
// A stream begins when the edge hands over the connection of a request. Its
// socket is then written directly, without blocking, by whoever publishes: an
// idle stream has no goroutine and no buffer. Hang-ups are seen at once by one
// epoll loop for each core. Where a connection has no descriptor that can be
// taken over (TLS, other systems than Linux) a stream has two goroutines
// instead and promises the same.
//
// Order: frames of one stream leave in the order in which Send was called.
// Limits: only when the socket is full are frames kept, as pointers to the
// shared frames; neighbouring live text is merged, and past Config.MaxPending
// bytes, or after Config.Stall without progress, the stream is cut. Loss: a cut
// stream loses what it had not taken; its client resumes by frame id.
//
// Locks: Streams.mu before Conn.mu before the small locks of poller, burial and
// stalled set. Nothing takes Streams.mu while it holds a Conn.mu, and no
// Subscriber is ever called with a lock held, so that a publisher may call Send
// under a lock that its Gone takes.
package sse
