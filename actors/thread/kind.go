package thread

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// Config is what threads need.
type Config struct {
	Store Store
	Tell  Teller
	// Published is the version of an agent that answers messages, 0 where this node does
	// not know: it does not block. nil: it never knows.
	Published func(t id.TenantID, a id.AgentID) int
	// Turn is the state column of a run that keeps that its turn has come: one that is
	// accepted while no other is open has nobody before it. nil: each is told.
	Turn []byte
	Log  zerolog.Logger
}

// idle is how long a thread without open runs stays in memory.
const idle = 30 * time.Second

type kind struct{ cfg Config }

// Register makes n host threads that write through w.
func Register(n *cluster.Node, w durable.Writer, cfg Config, host durable.Config) {
	k := &kind{cfg: cfg}
	durable.Register(n, w, durable.Kind[State]{
		Name:    msg.KindThread,
		Machine: Machine{cfg.Published, cfg.Turn},
		Load:    k.load,
		Create:  create,
		Rows:    rows,
		Commit:  k.commit,
		Perform: k.perform,
		Idle:    idle,
		Done:    func(s State) bool { return s.Deleted && s.Queue.empty() },
	}, host)
}

// commit makes a decision durable. What is only known and not written, and what
// turns out to be written already, is.
func (k *kind) commit(ctx context.Context, w durable.Writer, a cluster.Address, prev durable.Loaded[State], d *durable.Decision[State], m any, rows *journal.Commit) error {
	if again, ok := again(d.Facts); ok {
		done, err := k.done(ctx, a, m)
		if err != nil {
			return fmt.Errorf("%w: %w", journal.ErrUnavailable, err)
		}
		if done {
			return nil
		}
		if again.Unheard {
			if err := k.current(ctx, a, prev.State.Row); err != nil {
				return err
			}
		}
		d.Reply = again.Else
		return nil
	}
	if rows.NewThread != nil {
		return w.Do(ctx, rows) // who was second is told by the host: the row is read then
	}
	if rows.Thread == nil {
		return nil
	}
	err := w.Do(ctx, rows)
	if !errors.Is(err, journal.ErrConflict) && !errors.Is(err, journal.ErrReplay) {
		return err
	}
	if done, failed := k.done(ctx, a, m); failed == nil && done {
		// It was carried out before, longer ago than is remembered, or by another
		// activation: here nothing more is known of it than was.
		d.Next = prev.State
		return nil
	}
	return err
}

// again is the fact Again among facts.
func again(facts []any) (Again, bool) {
	for _, f := range facts {
		if a, ok := f.(Again); ok {
			return a, true
		}
	}
	return Again{}, false
}

// done reports whether an order was carried out before, by what the rows say.
func (k *kind) done(ctx context.Context, a cluster.Address, m any) (bool, error) {
	switch m := m.(type) {
	case msg.Post:
		r, err := k.cfg.Store.Run(ctx, a.Tenant, m.Run)
		return r != nil && r.ThreadID != nil && r.ThreadID.UUID == a.ID, err
	case msg.DeleteThread:
		if m.Op.IsZero() {
			return false, nil
		}
		return k.cfg.Store.Audited(ctx, a.Tenant, id.AuditID{UUID: m.Op.UUID}, deletes, a.ID)
	}
	return false, nil
}

// current is journal.ErrConflict where the row is not the one that this activation has.
func (k *kind) current(ctx context.Context, a cluster.Address, row Row) error {
	t, err := k.cfg.Store.Thread(ctx, a.Tenant, id.ThreadID{UUID: a.ID}, 1)
	if err != nil {
		return fmt.Errorf("%w: %w", journal.ErrUnavailable, err)
	}
	if t == nil || t.Version != row.Version || t.Epoch != row.Epoch {
		return journal.ErrConflict
	}
	return nil
}

// deletes is the audit log's word for the deletion of a thread.
const deletes = "thread.delete"

// create is the thread before the Post that begins it.
func create(a cluster.Address, m any) (State, bool) {
	post, ok := m.(msg.Post)
	if !ok || post.New == nil {
		return State{}, false
	}
	return State{
		Tenant: a.Tenant, ID: id.ThreadID{UUID: a.ID}, Agent: post.AgentID, NextSeq: 1, Unborn: true, Embed: lifecycle.EmbedThread(post.New.CreatedBy),
		EndUserID: post.EndUserID,
	}, true
}

func (k *kind) load(ctx context.Context, a cluster.Address) (durable.Loaded[State], error) {
	t, err := k.cfg.Store.Thread(ctx, a.Tenant, id.ThreadID{UUID: a.ID}, window+1)
	if err != nil {
		return durable.Loaded[State]{}, err
	}
	if t == nil {
		return durable.Loaded[State]{}, problem.NotFound("thread")
	}
	open, more := turns(t.Open)
	asked := t.Asked[:min(len(t.Asked), window)]
	slices.Reverse(asked)
	return durable.Loaded[State]{
		State: State{
			Tenant: a.Tenant, ID: id.ThreadID{UUID: a.ID}, Agent: t.AgentID, NextSeq: t.NextSeq, Deleted: t.DeletedAt != nil,
			Embed: lifecycle.EmbedThread(t.CreatedBy), EndUserID: t.EndUserID,
			Row: Row{Version: t.Version, Epoch: t.Epoch}, Queue: Queue{Open: open, More: more, Asked: asked},
		},
		Guard: journal.Guard{Version: t.Version, Epoch: t.Epoch},
	}, nil
}

// rows is everything that a decision makes durable, in one commit. Every fact but
// Again changes the thread's row.
func rows(_ cluster.Address, prev durable.Loaded[State], d durable.Decision[State], m any, _ id.OpID, now time.Time) *journal.Commit {
	w := &journal.Commit{}
	if _, again := again(d.Facts); again || len(d.Facts) == 0 {
		return w
	}
	if prev.State.Unborn {
		begun(w, &d.Next, m.(msg.Post), d.Facts[0].(Posted).Accepted, now)
		return w
	}
	s, row := &d.Next, prev.State.Row
	w.Thread = &journal.ThreadUpdate{
		ID: s.ID, Guard: journal.Guard{Version: row.Version, Epoch: row.Epoch, SetEpoch: row.Claim}, NextSeq: s.NextSeq, UpdatedAt: now,
	}
	for _, f := range d.Facts {
		switch f := f.(type) {
		case Posted:
			posted(w, s, m.(msg.Post), f.Accepted, now)
		case Deleted:
			del := m.(msg.DeleteThread)
			w.Thread.DeletedAt, w.Thread.PurgeMessages = &now, true
			row := audit(s.ID.Shard(), del.By, deletes, "thread", s.ID.UUID, now)
			if !del.Op.IsZero() {
				row.ID = id.AuditID{UUID: del.Op.UUID}
			}
			w.Audit = append(w.Audit, row)
		case Emptied:
			w.Thread.PurgeMessages = true
		}
	}
	return w
}

// begun is a thread with its first message.
func begun(w *journal.Commit, s *State, m msg.Post, a *msg.Accepted, now time.Time) {
	w.NewThread = &journal.ThreadInsert{
		ID: s.ID, AgentID: m.AgentID, Title: title(m.Content), CreatedBy: m.New.CreatedBy, EndUserID: s.EndUserID, NextSeq: s.NextSeq, CreatedAt: now,
	}
	posted(w, s, m, a, now)
	w.Audit = append(w.Audit, audit(s.ID.Shard(), m.By, "thread.create", "thread", s.ID.UUID, now))
}

// titleLength is how many characters of its first message a thread is called by.
const titleLength = 80

// title is what a thread is called that begins with this message: its beginning, on
// one line; nil where nothing of it can be seen.
func title(content string) *string {
	line := strings.Join(strings.FieldsFunc(content, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if line == "" {
		return nil
	}
	if r := []rune(line); len(r) > titleLength {
		line = strings.TrimSpace(string(r[:titleLength])) + "…"
	}
	return &line
}

func posted(w *journal.Commit, s *State, m msg.Post, a *msg.Accepted, now time.Time) {
	w.New = true
	w.Idempotency = idempotency(m.Idempotency, now)
	w.Accept = &journal.RunInsert{
		ID: a.Run, AgentID: &a.AgentID, AgentVersion: &a.AgentVersion, ThreadID: a.ThreadID, ThreadSeq: &a.ThreadSeq, Input: a.Input,
		OriginKind: a.Origin.Kind, OriginID: a.Origin.ID, EndUserID: a.EndUserID, PersonID: s.EndUserID, CreatedAt: a.CreatedAt,
		State: a.State,
	}
	w.Messages = []journal.Message{{
		Thread: *a.ThreadID, Seq: a.ThreadSeq, ID: m.Message, Role: "user", Content: m.Content, Attachments: m.Attachments,
		Run: &a.Run, CreatedAt: now,
	}}
	w.Audit = []journal.Audit{audit(a.Run.Shard(), m.By, "message.create", "message", m.Message.UUID, now)}
}

func audit(shard id.Shard, by msg.By, action, kind string, target id.UUID, now time.Time) journal.Audit {
	return journal.Audit{
		ID: id.AuditID{UUID: id.New(shard)}, At: now, Actor: by.Actor, Action: action, TargetKind: kind, TargetID: target, IP: by.IP,
	}
}

func idempotency(i *msg.Idempotency, now time.Time) *journal.Idempotency {
	if i == nil {
		return nil
	}
	return &journal.Idempotency{Digest: i.Digest, Fingerprint: i.Fingerprint, Status: i.Status, Response: i.Response, At: now}
}

var _ Store = (*engine.Store)(nil)
