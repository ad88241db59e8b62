package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"agentsvc/schemas/tool"
)

// Calls, and the sessions they share.

// session returns the client's session. If there is none, one of the waiting callers begins
// it. The session is held until release.
func (g *Gateway) session(ctx context.Context, e *entry, t Target) (*session, error) {
	for range 3 {
		if s := g.current(e); s != nil {
			return s, nil
		}
		g.mu.Lock()
		e.mu.Lock()
		f := e.connecting
		if f == nil && e.cur == nil {
			f = &flight[*session]{done: make(chan struct{})}
			e.connecting = f
			e.busy++
			g.work.Go(func() {
				ctx, cancel := g.flightTime()
				defer cancel()
				f.val, f.err = g.connect(ctx, t)
				g.mu.Lock()
				defer g.mu.Unlock()
				e.mu.Lock()
				e.connecting = nil
				if f.err == nil {
					e.cur = f.val
				}
				e.mu.Unlock()
				close(f.done)
				g.letGo(e)
			})
		}
		e.mu.Unlock()
		g.mu.Unlock()
		if f == nil {
			continue // another caller's session has just begun
		}
		if _, err := f.wait(ctx); err != nil {
			return nil, err
		}
	}
	return nil, &Error{Kind: Unreachable, Message: "the tool server ends each session at once"}
}

// current takes hold of the client's live session, nil if there is none.
func (g *Gateway) current(e *entry) *session {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.cur
	if s == nil {
		return nil
	}
	if !s.alive() {
		e.cur = nil
		g.retire(s)
		return nil
	}
	s.refs++
	return s
}

func (g *Gateway) release(e *entry, s *session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.refs--
	if s.retired && s.refs == 0 {
		g.work.Go(s.close)
	}
}

// lost retires a session that the server has forgotten, and reports whether it had.
func (g *Gateway) lost(e *entry, s *session, err error) bool {
	if !errors.Is(err, errForgotten) && s.alive() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cur == s {
		e.cur = nil
	}
	g.retire(s)
	return errors.Is(err, errForgotten)
}

// Call calls a tool with exactly these arguments, a JSON object. The caller must validate
// them against the tool's schema.
func (g *Gateway) Call(parent context.Context, t Target, name string, args json.RawMessage) (Answer, error) {
	began := time.Now()
	a, err := g.call(parent, t, name, args)
	countCall(time.Since(began), a, err)
	return a, err
}

func (g *Gateway) call(parent context.Context, t Target, name string, args json.RawMessage) (Answer, error) {
	e, err := g.enter(&t)
	if err != nil {
		return Answer{}, err
	}
	defer g.leave(e)
	ctx, cancel := g.life(parent)
	defer cancel()
	select {
	case e.places <- struct{}{}:
		defer func() { <-e.places }()
	case <-ctx.Done():
		return Answer{}, g.ended(parent, false)
	}
	c, err := g.catalog(ctx, e, t, false)
	if err != nil {
		return Answer{}, g.outside(parent, ctx, err)
	}
	i, known := c.index[name]
	if !known {
		return Answer{}, &Error{Kind: UnknownTool, Message: "the tool server has no such tool"}
	}
	for again := true; ; again = false {
		s, err := g.session(ctx, e, t)
		if err != nil {
			return Answer{}, g.outside(parent, ctx, err)
		}
		a, err := g.once(parent, ctx, s, t, name, args)
		if g.lost(e, s, err) && again && g.repeatable(err, c.specs[i]) {
			g.release(e, s)
			continue
		}
		g.release(e, s)
		return a, err
	}
}

// repeatable reports whether a call that met a forgotten session may be repeated once. A 404
// means, by the protocol, that nothing was processed. A 400 that looks like it is repeated
// only if the tool is annotated as repeatable.
func (g *Gateway) repeatable(err error, s tool.Spec) bool {
	return errors.Is(err, errProcessedNothing) || s.ReadOnly || s.Idempotent
}

func (g *Gateway) once(parent, ctx context.Context, s *session, t Target, name string, args json.RawMessage) (Answer, error) {
	o, err := g.newOp(ctx, t, maxAnswer)
	if err != nil {
		return Answer{}, g.outside(parent, ctx, err)
	}
	o.places, o.tenant = g.cfg.Large, t.Tenant
	defer o.leave(ctx)
	var r mcp.CallToolRequest
	r.Params.Name = name
	if len(args) > 0 {
		r.Params.Arguments = args
	}
	if _, err = s.client.CallTool(with(ctx, o), r); err != nil && o.answer() == nil {
		e := o.toError(parent, ctx, err)
		if g.ctx.Err() != nil && (e.Kind == Timeout || e.Kind == Cancelled) {
			e = g.ended(parent, e.MaybeRan)
		}
		return Answer{}, e
	}
	if len(o.answer()) > smallAnswer { // of a process, whose output is not read by call
		if err := o.enter(ctx); err != nil {
			return Answer{}, err
		}
	}
	a, err := decodeResult(o.answer())
	var e *Error
	switch {
	case errors.As(err, &e):
		return Answer{}, e
	case err != nil:
		return Answer{}, &Error{Kind: Protocol, Message: "the tool server's answer could not be understood", MaybeRan: true, Err: o.cause(err)}
	}
	a.Content = o.hide(a.Content) // hide also matches a credential broken up by characters that are removed later
	return a, nil
}

// Mask replaces the connection's credential by "[redacted]" in the strings of v, also inside
// longer strings. Once ctx has ended it opens no credential.
func (g *Gateway) Mask(ctx context.Context, t Target, v json.RawMessage) (json.RawMessage, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o, err := g.newOp(ctx, t, 0)
	if err != nil {
		return nil, err
	}
	if !json.Valid(v) {
		return nil, &Error{Kind: Protocol, Message: "not JSON"}
	}
	return o.mask.JSON(v), nil
}
