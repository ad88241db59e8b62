package approval

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
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
	"agentsvc/schemas/redact"
	"agentsvc/schemas/tool"
)

// Config configures the kind. Everything except Hears, PublicURL, Skills, Secrets and Log is required.
type Config struct {
	Store Store
	Vault Vault
	Tell  Teller
	// Seal seals an answer for the table idempotency (store.SealAnswer).
	Seal func(t id.TenantID, digest [32]byte, answer []byte) ([]byte, error)
	// Hears reports whether the tenant may have a webhook endpoint; it does not block. nil:
	// no tenant has one, and no event is written.
	Hears func(id.TenantID) bool
	// PublicURL is the service's address: the data of events names the console's page.
	PublicURL string
	// Skills checks edits of approvals of browser skills. nil: none is accepted.
	Skills Skills
	// Secrets masks edited arguments. nil: only the values of secret keys are masked.
	Secrets Secrets
	Log     zerolog.Logger
}

// resumeAfter is how long after the decision the timer of the run is due. It is deleted if
// the run has resumed by then.
const resumeAfter = time.Second

// pointDecided is a crash point between the commit of a decision and the message to its run.
var pointDecided = failpoint.Declare("approval.decided")

type kind struct{ cfg Config }

// New returns the kind approval.
func New(cfg Config) durable.Kind[State] {
	k := &kind{cfg: cfg}
	return durable.Kind[State]{
		Name:    msg.KindApproval,
		Machine: Machine{},
		Load:    k.load,
		Rows:    k.rows,
		Read:    k.read,
		After:   k.after,
		// It leaves memory at once: the run writes this row too, and a decision about a
		// timer alone does not change the row's version.
		Idle: 0,
	}
}

func (k *kind) load(ctx context.Context, a cluster.Address) (durable.Loaded[State], error) {
	r, err := k.cfg.Store.Approval(ctx, a.Tenant, id.ApprovalID{UUID: a.ID})
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
		Tenant: a.Tenant, ID: id.ApprovalID{UUID: a.ID}, Run: r.Run, Agent: r.Agent, Workflow: r.Workflow, Asked: r.CreatedAt, Tool: r.Tool, SkillRun: r.SkillRun, Risk: r.Risk, Waiting: r.RunStatus == lifecycle.RunWaitingApproval,
		Status: r.Status, Assignee: r.Assignee, Escalate: r.Escalate, Required: r.Required, SoFar: r.SoFar, Ledger: ledger,
		Decision: r.Decision, Feedback: r.Feedback, ExpiresAt: r.ExpiresAt, EscalateAt: r.EscalateAt, EscalatedAt: r.EscalatedAt,
		DecidedAt: r.DecidedAt, Shown: r.Shown, Schema: r.Schema, Digest: r.Digest, OtherEdits: r.OtherEdits,
	}
	if s.Status == lifecycle.ApprovalPending {
		s.Frozen = k.frozen(&s, r)
	}
	return durable.Loaded[State]{State: s, Guard: journal.Guard{Version: r.Version, Epoch: r.Epoch}}, nil
}

// frozen opens the frozen arguments. If that fails it returns nil; the approval can still be
// rejected, and it expires.
func (k *kind) frozen(s *State, r *engine.Approval) json.RawMessage {
	plain, err := k.cfg.Vault.Open(engine.FrozenAt(s.Tenant, s.ID), r.Frozen)
	if err != nil {
		k.cfg.Log.Error().Err(err).Stringer("tenant", s.Tenant).Stringer("approval", s.ID).Msg("frozen arguments do not open")
		return nil
	}
	return plain
}

// rows returns the commit of a decision.
func (k *kind) rows(_ cluster.Address, prev durable.Loaded[State], d durable.Decision[State], m any, _ id.OpID, now time.Time) *journal.Commit {
	s, w, by := &d.Next, &journal.Commit{}, msg.System
	for _, f := range d.Facts {
		switch f := f.(type) {
		case Voted:
			by = f.Entry.Principal
			w.Rows = append(w.Rows, k.update(prev, s, now))
			if f.Entry.Action == lifecycle.ActionEdit {
				w.Statements = append(w.Statements, engine.BoundEdits(s.Tenant, s.Run, s.ID, s.room()))
			}
			detail := struct {
				Action lifecycle.Action         `json:"action"`
				Status lifecycle.ApprovalStatus `json:"status"`
			}{f.Entry.Action, s.Status}
			if by, ok := m.(msg.Decide); ok {
				w.Audit = append(w.Audit, audit(s, by.By, "approval.decide", encode(detail), now))
				w.Idempotency = k.idempotency(s, by.Idempotency, d.Reply, now)
			}
		case Expired:
			w.Rows = append(w.Rows, k.update(prev, s, now))
			w.Audit = append(w.Audit, audit(s, msg.By{Actor: msg.System}, "approval.expired", nil, now))
		case Escalated:
			w.Rows = append(w.Rows, k.update(prev, s, now))
			w.TimersDone = append(w.TimersDone, engine.ApprovalTimer(s.ID, msg.TimerEscalate))
			detail := struct {
				From lifecycle.Role `json:"from"`
				To   lifecycle.Role `json:"to"`
			}{prev.State.Assignee, s.Assignee}
			w.Audit = append(w.Audit, audit(s, msg.By{Actor: msg.System}, "approval.escalated", encode(detail), now))
			k.reportEscalated(w, s, now)
		case Rearmed:
			w.Timers = append(w.Timers, journal.Timer{TimerKey: engine.ApprovalTimer(s.ID, f.Name), DueAt: f.At})
		case Disarmed:
			w.TimersDone = append(w.TimersDone, engine.ApprovalTimer(s.ID, f.Name))
		}
	}
	if ends(&prev.State, s) {
		w.TimersDone = append(w.TimersDone, engine.ApprovalTimer(s.ID, msg.TimerExpire))
		if prev.State.EscalateAt != nil { // else there is no timer, and none is set later
			w.TimersDone = append(w.TimersDone, engine.ApprovalTimer(s.ID, msg.TimerEscalate))
		}
		w.Timers = append(w.Timers, journal.Timer{TimerKey: engine.WakeTimer(s.Run, s.ID), DueAt: now.Add(resumeAfter)})
		if s.refusesSkill() {
			w.Timers = append(w.Timers, journal.Timer{TimerKey: engine.SkillTimer(*s.SkillRun), DueAt: now.Add(resumeAfter)})
		}
		k.reportDecided(w, s, by, now)
		w.Rows = append(w.Rows, s.tally(now))
	}
	return w
}

// tally counts the end of the approval.
func (s *State) tally(now time.Time) *engine.Tally {
	took := now.Sub(s.Asked)
	if s.Status == lifecycle.ApprovalExpired {
		return &engine.Tally{What: lifecycle.TallyExpired, At: now, Agent: s.Agent}
	}
	return &engine.Tally{What: lifecycle.TallyDecided, At: now, Agent: s.Agent, Took: &took}
}

// refusesSkill reports whether a run of a browser skill waits for nothing any more. One that is
// approved is told so by its agent's run, when the turn of its call has come.
func (s *State) refusesSkill() bool {
	return s.SkillRun != nil && s.Status != lifecycle.ApprovalApproved && s.Status != lifecycle.ApprovalEdited
}

// ends reports whether the decision ends the approval.
func ends(prev, next *State) bool { return next.Status.Terminal() && !prev.Status.Terminal() }

// read answers a question of the machine.
func (k *kind) read(ctx context.Context, a cluster.Address, question any) (any, error) {
	switch q := question.(type) {
	case CheckArgs:
		var out ArgsChecked
		var err error
		if out.Reason, err = k.unfit(ctx, a.Tenant, q); err == nil && out.Reason == "" {
			out.Shown, err = k.shown(ctx, a.Tenant, q)
		}
		return out, err
	}
	panic(fmt.Sprintf("approval: unknown question %T", question))
}

// unfit returns why edited arguments are not accepted, empty if they are.
func (k *kind) unfit(ctx context.Context, tenant id.TenantID, q CheckArgs) (reason string, err error) {
	err = tool.Check(ctx, q.Schema, q.Args)
	switch {
	case err != nil && ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return err.Error(), nil
	case q.SkillRun == nil:
		return "", nil
	case k.cfg.Skills == nil:
		return "This deployment has no browser skills.", nil
	}
	return k.cfg.Skills.CheckSkillEdit(ctx, tenant, *q.SkillRun, q.Args)
}

// shown returns edited arguments as the ledger shows them.
func (k *kind) shown(ctx context.Context, tenant id.TenantID, q CheckArgs) (json.RawMessage, error) {
	if k.cfg.Secrets == nil {
		return redact.JSON(q.Given), nil
	}
	by := tool.Caller{Tenant: tenant, Workflow: q.Workflow}
	if q.Agent != nil {
		by.Agent, by.Workflow = *q.Agent, nil
	}
	return k.cfg.Secrets.ShowEdit(ctx, by, q.Given)
}

// update returns the swap of the row.
func (k *kind) update(prev durable.Loaded[State], s *State, now time.Time) *engine.ApprovalUpdate {
	u := &engine.ApprovalUpdate{
		ID: s.ID, Run: s.Run, Guard: prev.Guard, Status: s.Status, Assignee: s.Assignee, SoFar: s.SoFar, Digest: s.Digest,
		Decision: s.Decision, Feedback: s.Feedback, EscalatedAt: s.EscalatedAt, DecidedAt: s.DecidedAt, UpdatedAt: now,
	}
	var err error
	if u.Decisions, err = encodeLedger(s.Ledger); err != nil {
		panic(err) // the entries were decoded, or came as JSON
	}
	if s.Edited != nil {
		if u.Edited, err = k.cfg.Vault.Seal(engine.EditedAt(s.Tenant, s.ID), s.Edited); err != nil {
			panic(err) // sealing only needs randomness
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

// idempotency returns the row that keeps the reply: the bytes of the answer's body.
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

// after wakes the run at once; its timer would do so a second later. After an escalation a run that is
// in memory reads for which role it waits: its end can only cancel what it has read.
func (k *kind) after(_ cluster.Address, prev, next State, _ durable.Decision[State]) {
	switch {
	case ends(&prev, &next):
		failpoint.Hit(pointDecided)
		k.tell(&next)
	case next.Assignee != prev.Assignee:
		k.wake(&next)
	}
}

func (k *kind) wake(s *State) {
	kind := msg.KindRun
	if strings.HasPrefix(s.Tool, nodePrefix) { // KindRun would pass it on, after a read
		kind = msg.KindWorkflow
	}
	k.cfg.Tell.Tell(cluster.Address{Kind: kind, Tenant: s.Tenant, ID: s.Run.UUID}, msg.ApprovalsDecided{})
}

func (k *kind) tell(s *State) {
	k.wake(s)
	if s.refusesSkill() {
		k.cfg.Tell.Tell(cluster.Address{Kind: msg.KindSkillRun, Tenant: s.Tenant, ID: s.SkillRun.UUID}, msg.LookSkill{})
	}
}

var _ Store = (*engine.Store)(nil)
