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

// Config configures the kind.
type Config struct {
	Store Store
	Tell  Teller
	// Published returns the version of an agent that answers messages, 0 if this node does
	// not have it in memory; it does not block. nil: no version is in memory.
	Published func(t id.TenantID, a id.AgentID) int
	// Version reads that version; AGENT_NOT_PUBLISHED if there is none.
	Version func(ctx context.Context, t id.TenantID, a id.AgentID) (int, error)
	// Ready is the state column of a run that is accepted while no other is open. nil:
	// such a run learns from Proceed that it is ready.
	Ready []byte
	Log   zerolog.Logger
}

// idle is how long a thread without open runs stays in memory.
const idle = 30 * time.Second

type kind struct{ cfg Config }

// Register makes n host threads that write through w.
func Register(n *cluster.Node, w durable.Writer, cfg Config, host durable.Config) {
	k := &kind{cfg: cfg}
	durable.Register(n, w, durable.Kind[State]{
		Name:    msg.KindThread,
		Machine: Machine{cfg.Published, cfg.Ready},
		Load:    k.load,
		Create:  create,
		Rows:    rows,
		Read:    k.read,
		Perform: k.perform,
		Idle:    idle,
		Done:    func(s State) bool { return s.Deleted && s.Queue.empty() },
	}, host)
}

// read answers a question of the machine.
func (k *kind) read(ctx context.Context, a cluster.Address, question any) (any, error) {
	thread := id.ThreadID{UUID: a.ID}
	switch q := question.(type) {
	case Accepted:
		return k.cfg.Store.Accepted(ctx, a.Tenant, thread, q.Run)
	case Erased:
		return k.cfg.Store.Audited(ctx, a.Tenant, id.AuditID{UUID: q.Op.UUID}, deletes, a.ID)
	case Admission:
		return k.admitted(ctx, a.Tenant, thread, q)
	}
	panic(fmt.Sprintf("thread: unknown question %T", question))
}

func (k *kind) admitted(ctx context.Context, tenant id.TenantID, thread id.ThreadID, q Admission) (out Admitted, err error) {
	if q.Embed {
		s, err := k.cfg.Store.Standing(ctx, tenant, thread, q.Run)
		if err != nil {
			return out, err
		}
		out.Before, out.Refusal = s.Before, refusal(s)
	}
	if q.Agent.IsZero() || out.Before || out.Refusal != nil {
		return out, nil
	}
	var silent *problem.Error
	if out.Version, err = k.cfg.Version(ctx, tenant, q.Agent); errors.As(err, &silent) {
		out.Silent, err = silent, nil
	}
	return out, err
}

// maxMessages is how many messages a thread of the embed API holds (service.md, Limits).
const maxMessages = 200

// refusal returns why the thread accepts no message now, nil if it does
// (service.md, Embed rules; open-parts.md, Embed): EMBED_THREAD_FULL, then
// EMBED_RUN_IN_FLIGHT with the run. A message is queued behind runs that wait for an approval.
func refusal(s engine.Standing) error {
	if s.Messages+s.Owed+2 > maxMessages {
		return problem.New(problem.CodeEmbedThreadFull, "The conversation is full. Start a new one.")
	}
	if s.Open != nil && *s.OpenStatus != lifecycle.RunWaitingApproval {
		return &problem.Error{Code: problem.CodeEmbedRunInFlight, Detail: "The last message has no reply yet. Wait for the run to end, or cancel it.",
			Extensions: map[string]any{"run_id": s.Open.String()}}
	}
	return nil
}

// deletes is the audit log's action for the deletion of a thread.
const deletes = "thread.delete"

// emptyAfter is how long after the deletion of a thread with open runs its timer is due. The
// timer repeats the cancels, and the deletion of what the runs wrote, until no run is open: a
// crash loses the cancels, which are in memory, and the news that a run has ended.
const emptyAfter = 5 * time.Second

func emptyTimer(t id.ThreadID) journal.TimerKey {
	return journal.TimerKey{Kind: msg.KindThread, Entity: t.UUID, Name: "empty"}
}

// create returns the thread before the Post that creates it.
func create(a cluster.Address, m any) (State, bool) {
	post, ok := m.(msg.Post)
	if !ok || !post.New || post.Visitor == nil {
		return State{}, false
	}
	return State{
		Tenant: a.Tenant, ID: id.ThreadID{UUID: a.ID}, Agent: post.Visitor.Agent, CreatedBy: post.Visitor.CreatedBy, NextSeq: 1, Unborn: true,
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
	open, more := openRuns(t.Open)
	asked := t.Asked[:min(len(t.Asked), window)]
	slices.Reverse(asked)
	return durable.Loaded[State]{
		State: State{
			Tenant: a.Tenant, ID: id.ThreadID{UUID: a.ID}, Agent: t.AgentID, NextSeq: t.NextSeq, Deleted: t.DeletedAt != nil,
			CreatedBy: t.CreatedBy, EndUserID: t.EndUserID, Queue: Queue{Open: open, More: more, Asked: asked},
		},
		Guard: journal.Guard{Version: t.Version, Epoch: t.Epoch},
	}, nil
}

// rows returns the commit of a decision. Every fact changes the thread's row; a decision without
// facts writes nothing.
func rows(_ cluster.Address, prev durable.Loaded[State], d durable.Decision[State], m any, _ id.OpID, now time.Time) *journal.Commit {
	if len(d.Facts) == 0 {
		return nil
	}
	w := &journal.Commit{}
	if prev.State.Unborn {
		begun(w, &d.Next, m.(msg.Post), d.Facts[0].(Posted).Accepted, now)
		return w
	}
	s := &d.Next
	row := &engine.ThreadUpdate{ID: s.ID, Guard: prev.Guard, NextSeq: s.NextSeq, UpdatedAt: now}
	w.Rows = append(w.Rows, row)
	for _, f := range d.Facts {
		switch f := f.(type) {
		case Posted:
			posted(w, s, m.(msg.Post), f.Accepted, now)
		case Deleted:
			del := m.(msg.DeleteThread)
			row.DeletedAt = &now
			w.Rows = append(w.Rows, &engine.PurgeMessages{Thread: s.ID})
			if !s.Queue.Purged {
				w.Timers = append(w.Timers, journal.Timer{TimerKey: emptyTimer(s.ID), DueAt: now.Add(emptyAfter)})
			}
			entry := audit(s.ID.Shard(), del.By, deletes, "thread", s.ID.UUID, now)
			if !del.Op.IsZero() {
				entry.ID = id.AuditID{UUID: del.Op.UUID}
			}
			w.Audit = append(w.Audit, entry)
		case Emptied:
			w.Rows = append(w.Rows, &engine.PurgeMessages{Thread: s.ID})
			w.TimersDone = append(w.TimersDone, emptyTimer(s.ID))
		}
	}
	return w
}

// begun adds the rows of a thread with its first message.
func begun(w *journal.Commit, s *State, m msg.Post, a *msg.Accepted, now time.Time) {
	w.Rows = append(w.Rows, &engine.ThreadInsert{
		ID: s.ID, AgentID: s.Agent, Title: title(m.Content), CreatedBy: s.CreatedBy, EndUserID: s.EndUserID, NextSeq: s.NextSeq, CreatedAt: now,
	})
	posted(w, s, m, a, now)
	w.Audit = append(w.Audit, audit(s.ID.Shard(), m.By, "thread.create", "thread", s.ID.UUID, now))
}

// titleLength bounds the title of a thread, in characters.
const titleLength = 80

// title returns the title of a thread: the start of its first message, on one line; nil if the
// message has no visible character.
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

// posted adds the rows of a message and its run.
func posted(w *journal.Commit, s *State, m msg.Post, a *msg.Accepted, now time.Time) {
	w.New = true
	w.Idempotency = journal.Remember(m.Idempotency, now)
	w.Rows = append(w.Rows, &engine.RunInsert{
		ID: a.Run, AgentID: &a.AgentID, AgentVersion: &a.AgentVersion, ThreadID: a.ThreadID, ThreadSeq: &a.ThreadSeq, Input: a.Input,
		OriginKind: a.Origin.Kind, OriginID: a.Origin.ID, EndUserID: a.EndUserID, PersonID: s.EndUserID, CreatedAt: a.CreatedAt,
		State: a.State,
	}, &engine.MessageInsert{
		Thread: *a.ThreadID, Seq: a.ThreadSeq, ID: m.Message, Role: "user", Content: m.Content, Attachments: m.Attachments,
		Run: &a.Run, CreatedAt: now,
	})
	w.Audit = []journal.Audit{audit(a.Run.Shard(), m.By, "message.create", "message", m.Message.UUID, now)}
}

func audit(shard id.Shard, by msg.By, action, kind string, target id.UUID, now time.Time) journal.Audit {
	return journal.Audit{
		ID: id.AuditID{UUID: id.New(shard)}, At: now, Actor: by.Actor, Action: action, TargetKind: kind, TargetID: target, IP: by.IP,
	}
}

var _ Store = (*engine.Store)(nil)
