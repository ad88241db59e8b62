package pg

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// pause is the time between two attempts of a pool to connect to a server that is absent.
const pause = 50 * time.Millisecond

// Gate limits what pools ask of a server that is absent or starting: after an attempt to connect that failed for
// this reason, there is one attempt at a time and one in each pause, and the other callers get the error of the
// last one. A server forks a process for each attempt, also while it recovers: a node with many waiting readers
// would delay the recovery for which they wait. The pools of a node share a gate, so that the first connection
// of one opens it for all.
//
// It is the tracer of the pools' connections, because a pool has no other hook for an attempt that failed.
type Gate struct {
	mu       sync.Mutex
	err      error     // of the last attempt; nil: the server is there
	there    time.Time // the last connection was made
	next     time.Time // of the next attempt, if err is set
	underWay bool      // an attempt, if err is set
}

// enter is called before each attempt to connect.
func (g *Gate) enter(context.Context, *pgx.ConnConfig) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		return nil
	}
	if g.underWay || time.Now().Before(g.next) {
		return g.err
	}
	g.underWay = true
	return nil
}

// TraceConnectEnd is called after each attempt.
func (g *Gate) TraceConnectEnd(ctx context.Context, data pgx.TraceConnectEndData) {
	begun, _ := ctx.Value(begins{}).(time.Time)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.underWay = false
	switch {
	case data.Err == nil:
		g.err, g.there = nil, time.Now()
	case absent(data.Err) && !begun.Before(g.there): // else the server came while it failed
		g.err, g.next = data.Err, time.Now().Add(pause)
	}
}

// begins is the key of the time at which an attempt began.
type begins struct{}

// TraceConnectStart is called when an attempt begins.
func (g *Gate) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	return context.WithValue(ctx, begins{}, time.Now())
}

// absent reports whether an attempt to connect failed because no server listens, or because it starts, stops or
// recovers.
func absent(err error) bool {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code == "57P03"
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
}

// TraceQueryStart has nothing to do; the driver wants it of a tracer.
func (g *Gate) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd has nothing to do; the driver wants it of a tracer.
func (g *Gate) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
