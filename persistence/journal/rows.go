package journal

import (
	"embed"
	"slices"

	"agentsvc/persistence/pg"
)

//go:embed queries/*.sql
var queryFiles embed.FS

var queries = pg.Queries(queryFiles)

// The journal's own tables, which every kind writes. Idempotency rows come before
// everything, these others after the kinds' rows.
var (
	keys       = Plain("idempotency", "digest bytea")
	timers     = Plain("timers", "kind text, entity_id uuid, name text")
	usage      = Plain("usage_records", "id uuid")
	auditLog   = Plain("audit_log", "id uuid")
	deliveries = Plain("webhook_deliveries", "id uuid")

	keyInsert   = keys.once("fingerprint bytea, status int, response bytea, created_at timestamptz")
	timerDelete = timers.Delete("kind text, entity_id uuid, name text")
	timerUpsert = timers.Upsert("due_at timestamptz, claimed_until timestamptz")
	usageInsert = usage.Insert("at timestamptz, kind text, run_id uuid, agent_id uuid, model text, tokens_in bigint, tokens_out bigint, cost_usd float8, detail json")
	auditInsert = auditLog.Insert("at timestamptz, actor text, action text, target_kind text, target_id uuid, ip text, detail json")
	eventInsert = deliveries.heard("type text, body bytea, created_at timestamptz")
)

// once is an insert whose key tells that an operation is a replay.
func (t *Table) once(columns string) *Write {
	w := t.write("insert", slices.Concat(t.key, fields(columns)), false)
	w.build(t.insertSQL(w) + " ORDER BY u.tenant_id, u." + t.key[0].name) // one order for all writers: no deadlock
	w.missed, w.used = outcome{verdict: lost}, []string{t.name + "_pkey"}
	w.settled(t, replay, "JOIN", "", nil)
	return w
}

// heard makes a delivery for each endpoint that hears of an event. The lock keeps an
// endpoint that is being removed from being referred to: one that is gone by then drops
// out of the join.
func (t *Table) heard(columns string) *Write {
	w := t.write("insert", slices.Concat(t.key, fields(columns)), false)
	w.build(`WITH heard AS MATERIALIZED (
  SELECT u.tenant_id, u.id, u.type, u.body, u.created_at, w.id AS webhook_id
  FROM {rows} JOIN webhooks w ON w.tenant_id = u.tenant_id
  WHERE w.enabled AND w.events && ARRAY[u.type, '*'] AND (w.expires_at IS NULL OR w.expires_at > u.created_at)
  FOR KEY SHARE OF w
)
INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, next_attempt_at, created_at)
SELECT h.tenant_id, new_id(h.created_at), h.webhook_id, h.id, h.type, h.body, h.created_at, h.created_at FROM heard h`)
	return w
}

// Write and Put make each of these a Row.

func (*Idempotency) Write() *Write { return keyInsert }
func (*Timer) Write() *Write       { return timerUpsert }
func (*TimerKey) Write() *Write    { return timerDelete }
func (*Usage) Write() *Write       { return usageInsert }
func (*Audit) Write() *Write       { return auditInsert }
func (*Event) Write() *Write       { return eventInsert }

func (i *Idempotency) Put(v *Values) {
	v.Bytes(i.Digest[:]).Bytes(i.Fingerprint[:]).Int(i.Status).Bytes(notNull(i.Response)).Time(i.At)
}

func (k *TimerKey) Put(v *Values) { v.Text(k.Kind).UUID(k.Entity).Text(k.Name) }

func (t *Timer) Put(v *Values) {
	t.TimerKey.Put(v)
	v.Time(t.DueAt).TimeOrNull(nil) // a timer that is set anew is claimed by no one
}

func (u *Usage) Put(v *Values) {
	v.UUID(u.ID.UUID).Time(u.At).Text(string(u.Kind))
	UUIDOrNull(v, u.Run)
	UUIDOrNull(v, u.Agent)
	v.Text(u.Model).Int8(u.TokensIn).Int8(u.TokensOut).Float8(u.CostUSD).JSON(u.Detail)
}

func (a *Audit) Put(v *Values) {
	v.UUID(a.ID.UUID).Time(a.At).Text(a.Actor).Text(a.Action).Text(a.TargetKind).UUID(a.TargetID).Text(a.IP).JSON(a.Detail)
}

func (e *Event) Put(v *Values) {
	v.UUID(e.ID.UUID).Text(string(e.Type)).Bytes(notNull(e.Body)).Time(e.At)
}

// notNull is for a column that has no NULL: nil is empty.
func notNull(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// each calls f with each row of c.
func (c *Commit) each(f func(Row)) {
	if c.Idempotency != nil {
		f(c.Idempotency)
	}
	for _, r := range c.Rows {
		f(r)
	}
	for i := range c.TimersDone {
		f(&c.TimersDone[i])
	}
	for i := range c.Timers {
		f(&c.Timers[i])
	}
	for i := range c.Usage {
		f(&c.Usage[i])
	}
	for i := range c.Audit {
		f(&c.Audit[i])
	}
	for i := range c.Events {
		f(&c.Events[i])
	}
}

// schema is the tables of a writer.
type schema struct {
	writes []*Write // in the order in which a flush sends them
	places map[*Write]int
	texts  map[string]string // what a connection prepares, by name without prefix
}

// oneRow is what the name of a write's statement for one row ends with.
const oneRow = "_one"

func newSchema(tables []*Table) *schema {
	s := &schema{places: map[*Write]int{}, texts: map[string]string{}}
	for _, name := range []string{"fence", "forget"} {
		s.texts[name] = queries.Get(name)
	}
	for _, t := range slices.Concat([]*Table{keys}, tables, []*Table{timers, usage, auditLog, deliveries}) {
		for _, w := range t.writes {
			if _, there := s.places[w]; there {
				continue // several kinds may name one table
			}
			if _, taken := s.texts[w.name+oneRow]; taken {
				panic("journal: two writes have the name " + w.name)
			}
			s.places[w] = len(s.writes)
			s.writes = append(s.writes, w)
			s.texts[w.name+oneRow] = w.one
			if w.many != "" {
				s.texts[w.name] = w.many
			}
		}
	}
	return s
}

// rows are the rows of the operations of one flush, by statement.
type rows struct {
	schema *schema
	groups []group // one for each write
	values Values
}

// group is the rows of one write: one bulk, or one for each row that is a statement of
// its own.
type group struct {
	write *Write
	bulks []*bulk
	used  int
}

func newRows(s *schema) *rows {
	r := &rows{schema: s, groups: make([]group, len(s.writes))}
	for i, w := range s.writes {
		r.groups[i] = group{write: w, bulks: []*bulk{newBulk(w.fields)}}
	}
	return r
}

func (r *rows) reset() {
	for i := range r.groups {
		g := &r.groups[i]
		for _, b := range g.bulks[:g.used] {
			b.reset()
		}
		g.used = 0
	}
}

// next is the bulk of the write's next row.
func (g *group) next(e *entry) *bulk {
	if g.used == 0 || g.write.many == "" {
		if g.used == len(g.bulks) {
			g.bulks = append(g.bulks, newBulk(g.write.fields))
		}
		g.used++
	}
	b := g.bulks[g.used-1]
	if g.write.many == "" {
		b.of = e
	}
	return b
}

// add appends every row of e. The tenant is the first column of every statement, and no
// row can name another.
func (r *rows) add(e *entry) {
	e.c.each(func(row Row) {
		w := row.Write()
		b := r.groups[r.schema.places[w]].next(e)
		b.rows++
		b.cols[0].uuid(e.c.Tenant.UUID)
		r.values = Values{of: w, cols: b.cols[1 : 1+len(w.values)]}
		row.Put(&r.values)
		if w.op {
			b.cols[1+len(w.values)].uuid(e.c.Op.UUID)
		}
	})
}

// each calls f with each statement that has rows, in the order of a flush.
func (r *rows) each(f func(w *Write, b *bulk)) {
	for i := range r.groups {
		g := &r.groups[i]
		for _, b := range g.bulks[:g.used] {
			f(g.write, b)
		}
	}
}

// statement returns the prepared statement for the rows of b, and its parameters, valid
// until the next reset.
func (w *Write) statement(b *bulk) (prepared string, params [][]byte) {
	if b.rows == 1 {
		return w.preparedOne, b.values()
	}
	return w.preparedMany, b.arrays()
}
