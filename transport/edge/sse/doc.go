// Package sse keeps the open event streams of one node.
//
// A stream begins when the edge hands over the connection of a request. Publishers then write
// to its socket directly, without blocking: an idle stream has no goroutine and no buffer.
// One epoll loop for each core sees hang-ups at once. If a connection has no descriptor to
// take over (TLS, systems other than Linux), its stream has two goroutines instead and keeps
// the same promises.
//
// Order: frames of one stream leave in the order in which Send was called. Limits: frames are
// kept only while the socket is full, as pointers to the shared frames; neighbouring live
// text is merged, and past Config.MaxPending bytes, or after Config.Stall without progress,
// the stream is cut. Loss: a cut stream loses the frames that the client had not taken; the
// client resumes by frame id.
//
// Locks: Streams.mu before Conn.mu before the small locks of poller, burial and stalled set.
// Nothing takes Streams.mu while it holds a Conn.mu, and no Subscriber is ever called with a
// lock held, so that a publisher may call Send under a lock that its Gone takes.
package sse
