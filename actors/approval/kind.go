package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// Config is what approvals need. Everything but Join, Hears and Log is required.
type Config struct {
	Store Store
	Vault Vault
	Tell  Teller
	// Join, where set, has the run that waits commit the last decision it waits for
	// in one with what it does by it. run is its row as it was read with the
	// approval's, rows are what the decision makes durable, edited and shown the
	// arguments to call where the decision is an edit. Not joined and no error:
	// nothing was written, and nothing will be. The errors are those of package
	// journal.
	Join func(ctx context.Context, run *engine.Run, rows *journal.Commit, edited, shown json.RawMessage) (joined bool, err error)
	// Seal seals an answer for the table idempotency (store.SealAnswer).
	Seal func(t id.TenantID, digest [32]byte, answer []byte) ([]byte, error)
	// Hears reports whether the tenant has an endpoint that may hear of something; it
	// does not block. nil: nobody hears, and nothing is reported.
	Hears func(id.TenantID) bool
	Log   zerolog.Logger
}

// resumeAfter is how long after its decision a run that has not been told looks
// at its approvals.
const resumeAfter = time.Second

// pointDecided lies between a decision that was committed alone and its run's
// hearing of it.
var pointDecided = failpoint.Declare("approval.decided")

// bySystem is who expires and escalates, for the audit log.
var bySystem = msg.By{Actor: "system"}

type kind struct{ cfg Config }

// New is the kind approval.
func New(cfg Config) durable.Kind[State] {
	k := &kind{cfg: cfg}
	return durable.Kind[State]{
		Name:    msg.KindApproval,
		Machine: Machine{},
		Load:    k.load,
		Rows:    k.rows,
		Commit:  k.commit,
		After:   k.after,
		// Not at all in memory: the run writes this row too, and a decision about a
		// timer alone leaves the row's version as it is.
		Idle: 0,
	}
}

func (k *kind) load(ctx context.Context, a cluster.Address) (durable.Loaded[State], error) {
	r, run, err := k.cfg.Store.Approval(ctx, a.Tenant, id.ApprovalID{UUID: a.ID})
	if err != nil {
		return durable.Loaded[State]{}, err
	}
	if r == nil {
		return durable.Loaded[State]{}, problem.NotFound("approval")
	}
	ledger, err := decodeLedger(r.Decisions)
	if err != nil {
		return durable.Loaded[State]{}, err
	}
	s := State{
		Tenant: a.Tenant, ID: id.ApprovalID{UUID: a.ID}, Run: r.Run, Tool: r.Tool, Risk: r.Risk, Waiting: run.Status == lifecycle.RunWaitingApproval,
		Status: r.Status, Assignee: r.Assignee, Escalate: r.Escalate, Required: r.Required, SoFar: r.SoFar, Ledger: ledger,
		Decision: r.Decision, Feedback: r.Feedback, ExpiresAt: r.ExpiresAt, EscalateAt: r.EscalateAt, EscalatedAt: r.EscalatedAt,
		DecidedAt: r.DecidedAt, Shown: r.Shown, Schema: r.Schema, Digest: r.Digest,
	}
	if s.Status == lifecycle.ApprovalPending {
		s.Frozen = k.frozen(&s, r)
		if s.Waiting && waitsFor(run, s.ID) {
			s.Row = run
		}
	}
	return durable.Loaded[State]{State: s, Guard: journal.Guard{Version: r.Version, Epoch: r.Epoch}}, nil
}

// waitsFor reports whether a run waits for this approval alone.
func waitsFor(run *engine.Run, approval id.ApprovalID) bool {
	return !slices.ContainsFunc(run.Open, func(s engine.OpenStep) bool {
		return s.Asked != nil && s.Asked.ID != approval && !s.Asked.Status.Terminal()
	})
}

// frozen opens the arguments. Where they do not open the approval can still be
// rejected, and expires.
func (k *kind) frozen(s *State, r *engine.Approval) json.RawMessage {
	plain, err := k.cfg.Vault.Open(journal.FrozenAt(s.Tenant, s.ID), r.Frozen)
	if err != nil {
		k.cfg.Log.Error().Err(err).Stringer("tenant", s.Tenant).Stringer("approval", s.ID).Msg("frozen arguments do not open")
		return nil
	}
	return plain
}

// rows is everything that a decision makes durable, in one commit.
func (k *kind) rows(_ cluster.Address, prev durable.Loaded[State], d durable.Decision[State], m any, _ id.OpID, now time.Time) *journal.Commit {
	s, w, by := &d.Next, &journal.Commit{}, bySystem.Actor
	for _, f := range d.Facts {
		switch f := f.(type) {
		case Voted:
			by = f.Entry.Principal
			w.Approval = k.update(prev, s, now)
			detail := struct {
				Action lifecycle.Action         `json:"action"`
				Status lifecycle.ApprovalStatus `json:"status"`
			}{f.Entry.Action, s.Status}
			if by, ok := m.(msg.Decide); ok {
				w.Audit = append(w.Audit, audit(s, by.By, "approval.decide", encode(detail), now))
				w.Idempotency = k.idempotency(s, by.Idempotency, d.Reply, now)
			}
		case Expired:
			w.Approval = k.update(prev, s, now)
			w.Audit = append(w.Audit, audit(s, bySystem, "approval.expired", nil, now))
		case Escalated:
			w.Approval = k.update(prev, s, now)
			w.Approval.DropTimers = []string{msg.TimerEscalate}
			detail := struct {
				From lifecycle.Role `json:"from"`
				To   lifecycle.Role `json:"to"`
			}{prev.State.Assignee, s.Assignee}
			w.Audit = append(w.Audit, audit(s, bySystem, "approval.escalated", encode(detail), now))
			k.reportEscalated(w, s, now)
		case Rearmed:
			w.Timers = append(w.Timers, journal.Timer{TimerKey: s.timer(f.Name), DueAt: f.At})
		case Disarmed:
			w.TimersDone = append(w.TimersDone, s.timer(f.Name))
		}
	}
	if ends(&prev.State, s) {
		look := now.Add(resumeAfter)
		w.Approval.DropTimers, w.Approval.WakeRun = []string{msg.TimerExpire}, &look
		if prev.State.EscalateAt != nil { // a timer that is not there never comes to be
			w.Approval.DropTimers = append(w.Approval.DropTimers, msg.TimerEscalate)
		}
		k.reportDecided(w, s, by, now)
	}
	return w
}

// ends reports whether a decision is the one that ends the approval.
func ends(prev, next *State) bool { return next.Status.Terminal() && !prev.Status.Terminal() }

// commit has the run commit the decision that it waits for, or commits it alone,
// and the run hears of it then. Where it is not known whether the run has, there is
// no second way: the row says so to whoever asks again.
func (k *kind) commit(ctx context.Context, w durable.Writer, a cluster.Address, prev durable.Loaded[State], d *durable.Decision[State], m any, rows *journal.Commit) error {
	s := &d.Next
	if run, waits := prev.State.Row.(*engine.Run); waits && k.cfg.Join != nil && ends(&prev.State, s) {
		var shown json.RawMessage
		if s.Edited != nil {
			shown = s.Ledger[len(s.Ledger)-1].EditedArgs
		}
		switch joined, err := k.cfg.Join(ctx, run, rows, s.Edited, shown); {
		case errors.Is(err, journal.ErrReplay):
			return k.repeated(ctx, a, m, err)
		case err != nil:
			k.tell(s) // the run looks what became of it
			return err
		case joined:
			d.Facts = append(d.Facts, Joined{})
			return nil
		}
	}
	return k.repeated(ctx, a, m, w.Do(ctx, rows))
}

// repeated tells a decision that came twice from another one under the same
// Idempotency-Key: it was its first coming that used the key while this one was
// decided on an older row. The row moved on, and answers it.
func (k *kind) repeated(ctx context.Context, a cluster.Address, m any, err error) error {
	order, ok := m.(msg.Decide)
	if !ok || !errors.Is(err, journal.ErrReplay) {
		return err
	}
	if l, failed := k.load(ctx, a); failed == nil && l.State.taken(order) > 0 {
		return fmt.Errorf("%w: the decision was taken before", journal.ErrConflict)
	}
	return err
}

func (s *State) timer(name string) journal.TimerKey {
	return journal.TimerKey{Kind: msg.KindApproval, Entity: s.ID.UUID, Name: name}
}

// update swaps the row.
func (k *kind) update(prev durable.Loaded[State], s *State, now time.Time) *journal.ApprovalUpdate {
	u := &journal.ApprovalUpdate{
		ID: s.ID, Run: s.Run, Guard: prev.Guard, Status: s.Status, Assignee: s.Assignee, SoFar: s.SoFar, Digest: s.Digest,
		Decision: s.Decision, Feedback: s.Feedback, EscalatedAt: s.EscalatedAt, DecidedAt: s.DecidedAt, UpdatedAt: now,
	}
	var err error
	if u.Decisions, err = encodeLedger(s.Ledger); err != nil {
		panic(err) // what was decoded, or came as JSON, encodes
	}
	if s.Edited != nil {
		if u.Edited, err = k.cfg.Vault.Seal(journal.EditedAt(s.Tenant, s.ID), s.Edited); err != nil {
			panic(err) // sealing needs nothing but the machine's randomness
		}
	}
	return u
}

func audit(s *State, by msg.By, action string, detail json.RawMessage, now time.Time) journal.Audit {
	return journal.Audit{
		ID: id.AuditID{UUID: id.New(s.ID.Shard())}, At: now, Actor: by.Actor, Action: action, TargetKind: "approval", TargetID: s.ID.UUID,
		IP: by.IP, Detail: detail,
	}
}

// idempotency keeps the reply, which is the answer's body byte by byte.
func (k *kind) idempotency(s *State, i *msg.Idempotency, reply any, now time.Time) *journal.Idempotency {
	if i == nil {
		return nil
	}
	sealed, err := k.cfg.Seal(s.Tenant, i.Digest, encode(reply))
	if err != nil {
		panic(err) // as in update
	}
	return &journal.Idempotency{Digest: i.Digest, Fingerprint: i.Fingerprint, Status: i.Status, Response: sealed, At: now}
}

func encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs
	}
	return b
}

// after tells the run at once what its timer would tell it a second later.
func (k *kind) after(_ cluster.Address, prev, next State, d durable.Decision[State]) {
	if ends(&prev, &next) && !slices.Contains(d.Facts, any(Joined{})) {
		failpoint.Hit(pointDecided)
		k.tell(&next)
	}
}

func (k *kind) tell(s *State) {
	k.cfg.Tell.Tell(cluster.Address{Kind: msg.KindRun, Tenant: s.Tenant, ID: s.Run.UUID}, msg.ApprovalsDecided{})
}

var _ Store = (*engine.Store)(nil)
