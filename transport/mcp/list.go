package mcp

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"agentsvc/schemas/tool"
	"agentsvc/schemas/turn"
)

// Lists of tools: concurrent requests share one exchange, and results are cached.

// catalog is one response of tools/list.
type catalog struct {
	specs []tool.Spec
	index map[string]int
	at    time.Time
	bytes int
}

// Tools returns the tools that the server offers, at most TTL old. The slice is shared and
// must not be changed.
func (g *Gateway) Tools(ctx context.Context, t Target) ([]tool.Spec, error) {
	return g.tools(ctx, t, false)
}

// Cached returns what Tools does if that need not ask the server; false if it must.
func (g *Gateway) Cached(t Target) ([]tool.Spec, bool) {
	e, err := g.enter(&t)
	if err != nil {
		return nil, false
	}
	defer g.leave(e)
	c := g.cached(e)
	if c == nil {
		return nil, false
	}
	return c.specs, true
}

// Fresh fetches the tools that the server offers now, and refreshes the cache.
func (g *Gateway) Fresh(ctx context.Context, t Target) ([]tool.Spec, error) {
	return g.tools(ctx, t, true)
}

func (g *Gateway) tools(parent context.Context, t Target, fresh bool) ([]tool.Spec, error) {
	e, err := g.enter(&t)
	if err != nil {
		return nil, err
	}
	defer g.leave(e)
	if !fresh { // most often: no deadline is needed
		if c := g.cached(e); c != nil {
			return c.specs, nil
		}
	}
	ctx, cancel := g.life(parent)
	defer cancel()
	c, err := g.catalog(ctx, e, t, fresh)
	if err != nil {
		return nil, g.outside(parent, ctx, err)
	}
	return c.specs, nil
}

// outside returns the error for a failure before the call was sent.
func (g *Gateway) outside(parent, ctx context.Context, err error) error {
	var e *Error
	if errors.As(err, &e) {
		before := *e // shared by all waiting callers
		before.MaybeRan = false
		return &before
	}
	if ctx.Err() != nil {
		return g.ended(parent, false)
	}
	return &Error{Kind: Protocol, Message: "the tool server's answer could not be understood"}
}

// catalog returns the list, cached or fetched; concurrent callers share one fetch. With fresh
// it begins a fetch of its own, and an older one in flight keeps nothing.
func (g *Gateway) catalog(ctx context.Context, e *entry, t Target, fresh bool) (*catalog, error) {
	if !fresh {
		if c := g.cached(e); c != nil {
			return c, nil
		}
	}
	g.mu.Lock()
	e.mu.Lock()
	f := e.listing
	if c := e.list; f == nil && c != nil && !fresh && g.young(c) {
		e.mu.Unlock()
		g.mu.Unlock()
		return c, nil // it has just arrived
	}
	if f == nil || fresh { // a fetch that is in flight may have read the list before it was asked for
		f = &flight[*catalog]{done: make(chan struct{})}
		e.listing = f
		e.busy++
		g.work.Go(func() {
			f.val, f.err = g.ask(e, t)
			g.keep(e, f)
		})
	}
	e.mu.Unlock()
	g.mu.Unlock()
	return f.wait(ctx)
}

// cached returns the list while it is fresh.
func (g *Gateway) cached(e *entry) *catalog {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.list == nil || !g.young(e.list) {
		return nil
	}
	listsCached.Inc()
	return e.list
}

func (g *Gateway) young(c *catalog) bool { return g.cfg.Now().Before(c.at.Add(g.cfg.TTL)) }

// keep stores the result of a flight.
func (g *Gateway) keep(e *entry, f *flight[*catalog]) {
	outcome := "asked"
	if f.err != nil {
		outcome = "failed"
	}
	lists.WithLabelValues(outcome).Inc()
	g.mu.Lock()
	defer g.mu.Unlock()
	e.mu.Lock()
	if e.listing == f { // otherwise the flight began before ForgetAll or Fresh
		e.listing = nil
		if f.err == nil {
			g.account(e, f.val)
		}
	}
	e.mu.Unlock()
	close(f.done)
	g.letGo(e)
	for g.bytes > maxListBytes {
		before := len(g.entries)
		g.dropLongestIdle()
		if len(g.entries) == before {
			break // all clients are in use
		}
	}
}

// flightTime bounds work that several callers share.
func (g *Gateway) flightTime() (context.Context, context.CancelFunc) {
	return context.WithTimeout(g.ctx, min(g.cfg.Timeout, helloTimeout))
}

// ask fetches the list page by page.
func (g *Gateway) ask(e *entry, t Target) (*catalog, error) {
	ctx, cancel := g.flightTime()
	defer cancel()
	ctx = turn.With(ctx, t.Tenant) // the schemas are compiled in the tenant's turn
	o, err := g.newOp(ctx, t, maxList)
	if err != nil {
		return nil, err
	}
	o.places, o.tenant = g.cfg.Large, t.Tenant
	defer o.leave(ctx)
	for again := true; ; again = false {
		s, err := g.session(ctx, e, t)
		if err != nil {
			return nil, g.outside(g.ctx, ctx, err)
		}
		c, err := g.pages(ctx, s, t, o)
		if g.lost(e, s, err) && again {
			g.release(e, s)
			continue
		}
		g.release(e, s)
		return c, err
	}
}

func (g *Gateway) pages(ctx context.Context, s *session, t Target, o *op) (*catalog, error) {
	c := &catalog{at: g.cfg.Now(), index: map[string]int{}}
	unusable := 0
	seen := map[string]bool{}
	var r mcp.ListToolsRequest
	for range maxPages {
		_, err := s.client.ListToolsByPage(with(ctx, o), r)
		if err != nil {
			e := o.toError(g.ctx, ctx, err)
			e.MaybeRan = false
			return nil, e
		}
		p, err := readPage(o.answer())
		if err != nil {
			return nil, &Error{Kind: Protocol, Message: "the tool server's list could not be understood"}
		}
		for _, raw := range p.Tools {
			l, ok := accept(raw)
			_, double := c.index[l.Name]
			if !ok || double || len(c.specs) == maxTools || o.hide(l.Name) != l.Name {
				continue
			}
			spec := l.spec(t, o.mask)
			// The schema comes from the server. Check it here, once for all calls, for errors
			// and for cost.
			err := tool.CheckSchema(ctx, spec.Schema)
			if ctx.Err() != nil {
				return nil, g.ended(g.ctx, false)
			}
			if err != nil {
				spec.Schema, spec.Unusable = nil, "the tool's inputSchema cannot be used: "+err.Error()
				unusable++
			}
			c.index[l.Name] = len(c.specs)
			c.specs = append(c.specs, spec)
			c.bytes += len(spec.Name) + len(spec.Description) + len(spec.Schema) + 256
		}
		if p.Next == "" || len(c.specs) == maxTools {
			break
		}
		if seen[p.Next] {
			return nil, &Error{Kind: Protocol, Message: "the tool server's list does not end"}
		}
		seen[p.Next] = true
		r.Params.Cursor = mcp.Cursor(p.Next)
	}
	c.specs = slices.Clip(c.specs)
	if unusable > 0 {
		unusableTools.Add(float64(unusable))
		g.cfg.Log.Warn().Stringer("tenant", t.Tenant).Stringer("server", t.Server).Int("unusable", unusable).Msg("tools of a server cannot be called: their inputSchema cannot be used")
	}
	if n := o.leftOut(); n > 0 {
		g.cfg.Log.Info().Stringer("tenant", t.Tenant).Stringer("server", t.Server).Int("tools", len(c.specs)).Int("left_out", n).Msg("tools of a server left out")
	}
	return c, nil
}
