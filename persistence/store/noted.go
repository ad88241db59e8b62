package store

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Exchange is how one exchange with a tool server went.
type Exchange struct {
	Tenant     id.TenantID
	Server     id.ServerID      // zero: it was not reached, and nothing is known of it
	Connection *id.ConnectionID // whose credential was presented; nil: none
	Error      string           // in plain language; empty: it succeeded
	Version    time.Time        // of the server's row
}

const (
	// sameFor is how long an outcome is not written again.
	sameFor = time.Minute
	// freshFor is how old a row with the same outcome, which another node has written, must be.
	freshFor = 30 * time.Second
	// mostNotes bounds what one node keeps of each kind. Further notes are dropped.
	mostNotes = 1 << 13
	// maxDenied is how many origins of a key a node keeps between two writes, and half of it how
	// many stay of those that came most often, and of those that came last.
	maxDenied = 100
	// maxNote bounds an error, in characters.
	maxNote = 500
)

type noteKey struct {
	tenant id.TenantID
	of     id.UUID
}

type outcome struct {
	at, version time.Time
	error       string
}

type origins map[string]*api.DeniedOrigin

// Noted writes what happens often and may be lost: how exchanges with tool servers go, and which
// origins embed keys refuse. It keeps notes in memory and writes them every second, those of all
// tenants in one statement of each kind, so that no call costs a write. Loss: the notes of one
// second, with the process.
type Noted struct {
	ticks
	pool    *pgxpool.Pool
	now     func() time.Time
	changed func(id.TenantID, msg.Change)

	mu                   sync.Mutex // guards the fields below
	servers, connections map[noteKey]outcome
	written              map[noteKey]outcome // what was written last, of both
	denied               map[noteKey]origins
	deniedCount          int
}

// NewNoted returns a Noted over a pool of the role svc_system. It writes only after Start.
func NewNoted(pool *pgxpool.Pool, now func() time.Time, log zerolog.Logger) *Noted {
	n := &Noted{pool: pool, now: now, changed: func(id.TenantID, msg.Change) {}, servers: map[noteKey]outcome{}, connections: map[noteKey]outcome{}, written: map[noteKey]outcome{}, denied: map[noteKey]origins{}}
	n.run = n.runOnce
	n.failed = func(err error) {
		log.Warn().Err(err).Msg("the health of tool servers and denied origins are not written")
	}
	return n
}

// OnChange sets what is called with each tool server, connection and embed key whose row or
// origins a write has changed. It must not block. Call it before Start.
func (n *Noted) OnChange(f func(id.TenantID, msg.Change)) { n.changed = f }

// Exchange notes how an exchange with a tool server went. It does not block.
func (n *Noted) Exchange(e Exchange) {
	o := outcome{n.now(), e.Version, clipped(e.Error)}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !e.Server.IsZero() {
		n.note(n.servers, noteKey{e.Tenant, e.Server.UUID}, o)
	}
	if e.Connection != nil {
		n.note(n.connections, noteKey{e.Tenant, e.Connection.UUID}, o)
	}
}

func (n *Noted) note(into map[noteKey]outcome, k noteKey, o outcome) {
	if was, ok := n.written[k]; ok && was.error == o.error && was.version.Equal(o.version) && o.at.Sub(was.at) < sameFor {
		delete(into, k) // an outcome in between is not the last one any more
		return
	}
	if _, there := into[k]; there || len(into) < mostNotes {
		into[k] = o
	}
}

func clipped(s string) string {
	i := 0
	for at := range s {
		if i == maxNote {
			return s[:at] + "…"
		}
		i++
	}
	return s
}

// Denied notes that an embed key refused an origin. It does not block.
func (n *Noted) Denied(t id.TenantID, k id.EmbedKeyID, origin string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	of := n.denied[noteKey{t, k.UUID}]
	d := of[origin]
	if d == nil {
		if len(of) >= maxDenied || n.deniedCount >= mostNotes {
			return
		}
		if of == nil {
			of = origins{}
			n.denied[noteKey{t, k.UUID}] = of
		}
		d = &api.DeniedOrigin{Origin: origin}
		of[origin] = d
		n.deniedCount++
	}
	d.Count++
	d.LastAt = n.now()
}

// runOnce writes what was noted since the last call. After a failure it is lost: it will be noted
// again.
func (n *Noted) runOnce(ctx context.Context) error {
	n.mu.Lock()
	servers, connections, denied := n.servers, n.connections, n.denied
	n.servers, n.connections, n.denied, n.deniedCount = map[noteKey]outcome{}, map[noteKey]outcome{}, map[noteKey]origins{}, 0
	n.mu.Unlock()
	b := &pgx.Batch{}
	var written []change
	collect := func(kind string) func(pgx.Rows) error {
		return func(rows pgx.Rows) error {
			c := change{Change: msg.Change{Kind: kind}}
			_, err := pgx.ForEachRow(rows, []any{&c.tenant, &c.ID}, func() error {
				written = append(written, c)
				return nil
			})
			return err
		}
	}
	queueOutcomes(b, "note_servers", servers, collect("mcp_server"))
	queueOutcomes(b, "note_connections", connections, collect("connection"))
	queueDenied(b, denied, collect("embed_key"))
	if b.Len() == 0 {
		return nil
	}
	if err := n.pool.SendBatch(ctx, b).Close(); err != nil {
		return named(err)
	}
	for _, c := range written {
		n.changed(c.tenant, c.Change)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.written)+len(servers)+len(connections) > 2*mostNotes {
		clear(n.written)
	}
	for _, of := range []map[noteKey]outcome{servers, connections} {
		for k, o := range of {
			n.written[k] = o
		}
	}
	return nil
}

// change is an object that a write has changed.
type change struct {
	tenant id.TenantID
	msg.Change
}

func queueOutcomes(b *pgx.Batch, query string, of map[noteKey]outcome, written func(pgx.Rows) error) {
	if len(of) == 0 {
		return
	}
	var tenants []id.TenantID
	var ids []id.UUID
	var ats []time.Time
	var errs []*string
	for k, o := range of {
		tenants, ids, ats = append(tenants, k.tenant), append(ids, k.of), append(ats, o.at)
		if errs = append(errs, nil); o.error != "" {
			errs[len(errs)-1] = &o.error
		}
	}
	b.Queue(queries.Get(query), tenants, ids, ats, errs, freshFor).Query(written)
}

func queueDenied(b *pgx.Batch, denied map[noteKey]origins, written func(pgx.Rows) error) {
	var tenants, keyTenants []id.TenantID
	var keys, keyIDs []id.UUID
	var names []string
	var counts []int64
	var ats []time.Time
	for k, of := range denied {
		keyTenants, keyIDs = append(keyTenants, k.tenant), append(keyIDs, k.of)
		for _, d := range of {
			tenants, keys, names, counts, ats = append(tenants, k.tenant), append(keys, k.of), append(names, d.Origin), append(counts, d.Count), append(ats, d.LastAt)
		}
	}
	if len(names) == 0 {
		return
	}
	b.Queue(queries.Get("note_denied"), tenants, keys, names, counts, ats).Query(written)
	b.Queue(queries.Get("note_denied_trim"), keyTenants, keyIDs, maxDenied/2)
}

// DeniedOrigins returns the origins that an embed key refused in the last 30 days, the latest
// first.
func (v View) DeniedOrigins(ctx context.Context, k id.EmbedKeyID) ([]api.DeniedOrigin, error) {
	if _, err := v.EmbedKey(ctx, k); err != nil {
		return nil, err
	}
	return all[api.DeniedOrigin](ctx, v, "denied_origins", v.tenant, k, maxDenied)
}
