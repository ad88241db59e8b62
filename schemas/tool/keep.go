package tool

import "context"

// A large answer takes a place of the node while it is read (transport/mcp, transport/model). The caller may
// take the place over, and keep it for as long as the answer is in memory.

type keeping struct{}

// Keeping returns a context for a call, or for a turn of a model: keep gets the function that gives the place of its answer
// back.
func Keeping(ctx context.Context, keep func(give func())) context.Context {
	return context.WithValue(ctx, keeping{}, keep)
}

// Kept ends a call or a turn: give is called now, unless the caller takes the place over.
func Kept(ctx context.Context, give func()) {
	if keep, ok := ctx.Value(keeping{}).(func(give func())); ok {
		keep(give)
		return
	}
	give()
}
