package skillrun

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/turn"
	"agentsvc/schemas/webhook"
)

// Config configures runs of browser skills. Store, Browser, Secrets, Files and Vault are required.
type Config struct {
	Store   Store
	Browser Browser
	Secrets Secrets
	Files   Files
	Grants  Grants // nil: grants are checked by the callers alone
	Vault   Vault
	// Changed is called after each commit of a run; it does not block. nil: no caller waits.
	Changed func(id.SkillRunID)
	// Hears reports whether the tenant may have a webhook endpoint; it does not block. nil: none
	// has.
	Hears func(id.TenantID) bool
	// Holder returns the other member that is at work on a run (durable.Holder). nil: there are no
	// other members.
	Holder func(context.Context, cluster.Address) id.MemberID
	Log    zerolog.Logger
}

// Vault seals the values of runs.
type Vault interface {
	Seal(place vault.AAD, plain []byte) (vault.Sealed, error)
	Open(place vault.AAD, sealed vault.Sealed) ([]byte, error)
}

// How many browser sessions a node has at a time, and of one tenant. A session costs about 200 MB
// of memory.
const (
	mostSessions = 4
	eachSessions = 2
)

// How many runs on which no person has decided wait for a place on a node, and of one tenant.
const (
	mostWait  = 512
	eachWaits = 32
)

type kind struct {
	cfg     Config
	actors  Actors
	places  *turn.Places
	effects int      // at a time (durable.Config.MaxEffects)
	desks   sync.Map // cluster.Address to *desk
}

// Register makes n the host of runs of browser skills that write through w. It is called before n
// starts.
func Register(n *cluster.Node, w durable.Writer, cfg Config, host durable.Config) {
	if host.MaxEffects <= 0 {
		host.MaxEffects = 1024
	}
	k := &kind{cfg: cfg, actors: n, places: turn.New(mostSessions, eachSessions), effects: host.MaxEffects}
	durable.Register(n, w, durable.Kind[State]{
		Name:    msg.KindSkillRun,
		Machine: Machine{},
		Load:    k.load,
		Create:  create,
		Rows:    k.rows,
		Read:    k.read,
		After:   k.after,
		Perform: k.perform,
		Forget:  k.clear,
		Finishes: func(e durable.Effect) bool {
			_, fills := e.(Reprepare) // its page would be of no use
			return !fills
		},
		Done: func(s State) bool { return s.Phase == "" || s.Phase == skill.Waiting || s.Phase == skill.Ended },
	}, host)
}

func create(a cluster.Address, m any) (State, bool) {
	start, ok := m.(msg.StartSkill)
	return State{Tenant: a.Tenant, ID: start.Run}, ok && start.Run.UUID == a.ID
}

func (k *kind) load(ctx context.Context, a cluster.Address) (l durable.Loaded[State], err error) {
	r, err := k.cfg.Store.Run(ctx, a.Tenant, id.SkillRunID{UUID: a.ID})
	switch {
	case err != nil:
		return l, err
	case r == nil: // its timer is deleted
		return durable.Loaded[State]{State: State{Tenant: a.Tenant, ID: id.SkillRunID{UUID: a.ID}}}, nil
	}
	s := &l.State
	*s = State{
		Tenant: a.Tenant, ID: id.SkillRunID{UUID: a.ID}, Skill: r.Skill, Slug: r.Slug, Taught: r.Revision, AgentRun: r.AgentRun, Agent: r.Agent,
		Approval: r.Approval, Reason: r.Reason, By: msg.By{Actor: r.CreatedBy}, Key: r.Key, CreatedAt: r.CreatedAt, FinishedAt: r.FinishedAt,
	}
	if err := s.decode(r.State); err != nil {
		return l, err
	}
	if k.cfg.Holder != nil && s.Phase != skill.Waiting && s.Phase != skill.Ended {
		if at := k.cfg.Holder(ctx, a); !at.IsZero() {
			return l, &durable.Elsewhere{At: at}
		}
	}
	for _, column := range []struct {
		doc []byte
		to  any
	}{{r.Precommit, &s.Page}, {r.Steps, &s.Steps}, {r.Verification, &s.Checks}, {r.Compensation, &s.Record.Compensation}, {r.Fault, &s.Fault}} {
		if len(column.doc) > 0 {
			if err := json.Unmarshal(column.doc, column.to); err != nil {
				return l, fmt.Errorf("read the record of skill run %s: %w", s.ID, err)
			}
		}
	}
	s.Result = json.RawMessage(r.Result)
	// Values that do not open fit no skill: the run then ends without a click.
	if s.Values, err = k.cfg.Vault.Open(store.SkillRunArgsAt(a.Tenant, s.ID), r.Args); err != nil {
		k.log(k.cfg.Log.Error(), s).Err(err).Msg("the values of a skill run do not open")
		s.Values = nil
	}
	l.Guard = journal.Guard{Version: r.Version, Epoch: r.Epoch}
	return l, nil
}

// The table of runs. A unique index refuses a second run with a held key.
var (
	runs      = journal.Actors("browser_skill_runs", "id uuid")
	runInsert = runs.Begin("skill_id uuid, slug text, revision int, agent_run_id uuid, agent_id uuid, approval_id uuid, created_by text, reason text, mode text, status text, " +
		"key text, args bytea, state bytea, created_at timestamptz")
	runSwap = runs.Swap(swapped)
	// The receipt counts only while the run that called has not ended: a cancel of it that was answered is not followed by a click.
	// The skill is locked against deletion, which finds either no receipt or one that it sees.
	runReceipt = runs.SwapWhile(journal.While{
		Row: "SELECT r.id FROM runs r JOIN browser_skills k ON k.tenant_id = r.tenant_id AND k.id = {skill_id}" +
			" WHERE r.tenant_id = {tenant_id} AND r.id = {agent_run_id} AND r.finished_at IS NULL FOR KEY SHARE OF k FOR SHARE OF r",
		Names: "agent_run_id",
		And:   "true",
	}, "skill_id uuid match, agent_run_id uuid match, "+swapped)
)

const swapped = "status text, code text, key text keep, held boolean, args bytea keep, precommit json, steps json, verification json, result json, compensation json, fault json, " +
	"state bytea, finished_at timestamptz"

type insert struct {
	s    *State
	args []byte
}

func (*insert) Write() *journal.Write { return runInsert }

func (i *insert) Changed() msg.Change { return i.s.changed() }
func (u *update) Changed() msg.Change { return u.s.changed() }

func (s *State) changed() msg.Change { return msg.Change{Kind: "browser_skill_run", ID: s.ID.UUID} }

func (i *insert) Put(v *journal.Values) {
	s := i.s
	v.UUID(s.ID.UUID).UUID(s.Skill.UUID).Text(s.Slug).Int(s.Taught)
	journal.UUIDOrNull(v, s.AgentRun)
	journal.UUIDOrNull(v, s.Agent)
	journal.UUIDOrNull(v, s.Approval)
	v.Text(s.By.Actor).Text(s.Reason).Text(string(s.Plan.Mode)).Text(string(s.Status)).Text(s.Key).Bytes(i.args).Bytes(s.encode()).Time(s.CreatedAt)
}

type update struct {
	s *State
	journal.Guard
	args []byte    // nil: as they are
	key  *string   // nil: as it is
	of   *id.RunID // the run that called, if this is the receipt
}

func (u *update) Write() *journal.Write {
	if u.of != nil {
		return runReceipt
	}
	return runSwap
}

func (u *update) Put(v *journal.Values) {
	s := u.s
	v.UUID(s.ID.UUID).Guard(u.Guard)
	if u.of != nil {
		v.UUID(s.Skill.UUID).UUID(u.of.UUID)
	}
	v.Text(string(s.Status)).TextOrNull(orNull(s.Code)).TextOrNull(u.key).Bool(s.HoldsKey()).Bytes(u.args)
	v.JSON(doc(s.Page)).JSON(list(s.Steps)).JSON(list(s.Checks)).JSON(s.Result).JSON(doc(s.Record.Compensation)).JSON(doc(s.Fault))
	v.Bytes(s.encode()).TimeOrNull(s.FinishedAt)
}

func orNull(c skill.Code) *string {
	if c == "" {
		return nil
	}
	s := string(c)
	return &s
}

// doc returns the JSON of what v points to, nothing for nil.
func doc[T any](v *T) json.RawMessage {
	if v == nil {
		return nil
	}
	return encode(v)
}

func list[T any](v []T) json.RawMessage {
	if v == nil {
		v = []T{}
	}
	return encode(v)
}

func encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs
	}
	return b
}

// rows returns the commit of a decision: the row, its audit, and with its end the usage and the
// event.
func (k *kind) rows(a cluster.Address, prev durable.Loaded[State], d durable.Decision[State], _ any, _ id.OpID, now time.Time) *journal.Commit {
	s, c := &d.Next, &journal.Commit{}
	var moved bool
	for _, f := range d.Facts {
		switch f.(type) {
		case Began:
			c.New = s.AgentRun == nil // what an accepted run calls is never refused
			c.Rows = append(c.Rows, &insert{s, k.seal(s)})
			if s.Plan.Mode == skill.DryRun {
				a := k.audit(s, "browser_skill.dry_run", now)
				if s.AgentRun == nil { // what a person does is done to the skill
					a.TargetKind, a.TargetID = "browser_skill", s.Skill.UUID
				}
				c.Audit = append(c.Audit, a)
			}
			moved = true
		case Moved, Claimed:
			u := &update{s: s, Guard: prev.Guard}
			if s.Edited && !prev.State.Edited {
				u.args, u.key = k.seal(s), &s.Key
			}
			if s.Phase == skill.Committing && prev.State.Phase != skill.Committing {
				u.of = s.AgentRun
			}
			c.Rows = append(c.Rows, u)
			moved = true
		case Answered:
			answered := *s
			answered.Status, answered.Code = skill.StatusCommitted, ""
			c.Audit = append(c.Audit, k.audit(&answered, "browser_skill.run.committed", now))
		case TimerDone:
			c.TimersDone = append(c.TimersDone, timer(s.ID))
		}
	}
	if !moved || s.Phase == prev.State.Phase {
		return c
	}
	if name := verb(&prev.State, s); name != "" && s.Plan.Mode == skill.Run {
		c.Audit = append(c.Audit, k.audit(s, "browser_skill.run."+name, now))
	}
	if prev.State.Phase == skill.Compensating && s.State.Compensation != skill.NotCompensated {
		c.Audit = append(c.Audit, k.audit(s, "browser_skill.run.compensated", now))
	}
	if s.Phase != skill.Ended {
		return c
	}
	c.Usage = append(c.Usage, usage(s, now))
	if s.AgentRun != nil && len(c.TimersDone) == 0 {
		c.TimersDone = append(c.TimersDone, timer(s.ID))
	}
	if k.cfg.Hears != nil && k.cfg.Hears(a.Tenant) {
		data := webhook.SkillRunEnded{SkillID: s.Skill.String(), RunID: s.ID.String(), Mode: string(s.Plan.Mode), Status: string(s.Status)}
		if s.AgentRun != nil {
			of := s.AgentRun.String()
			data.AgentRunID = &of
		}
		c.Events = append(c.Events, journal.NewEvent(a.Shard(), webhook.BrowserRunFinished, data, now))
	}
	return c
}

// verb returns the last part of the audit action of a change of the phase, "" if it has none.
func verb(prev, next *State) string {
	switch {
	case next.Phase == skill.Waiting:
		return "prepared"
	case next.Phase == skill.Compensating:
		return "failed"
	case next.Phase != skill.Ended || prev.Phase == skill.Compensating: // it was audited with the failed check
		return ""
	case next.Status == skill.Succeeded:
		return "succeeded"
	case next.Status == skill.Rejected:
		return "rejected"
	}
	return "failed"
}

func timer(r id.SkillRunID) journal.TimerKey {
	return journal.TimerKey{Kind: msg.KindSkillRun, Entity: r.UUID, Name: msg.TimerLook}
}

func (k *kind) seal(s *State) []byte {
	sealed, err := k.cfg.Vault.Seal(store.SkillRunArgsAt(s.Tenant, s.ID), s.Values)
	if err != nil {
		panic(err) // sealing only needs randomness
	}
	return sealed
}

// audit returns a row of the audit log. It holds no value and nothing of a page.
func (k *kind) audit(s *State, action string, now time.Time) journal.Audit {
	detail := struct {
		Run      id.SkillRunID  `json:"run_id"`
		Skill    id.SkillID     `json:"browser_skill_id"`
		Slug     string         `json:"slug"`
		AgentRun *id.RunID      `json:"agent_run_id"`
		Approval *id.ApprovalID `json:"approval_id,omitempty"`
		Status   skill.Status   `json:"status"`
		Code     skill.Code     `json:"code,omitempty"`
	}{s.ID, s.Skill, s.Slug, s.AgentRun, nil, s.Status, s.Code}
	if s.Plan.Mode == skill.Run {
		detail.Approval = s.Approval
	}
	return journal.Audit{
		ID: id.AuditID{UUID: id.New(s.ID.Shard())}, At: now, Actor: s.By.Actor, Action: action, TargetKind: "browser_skill_run", TargetID: s.ID.UUID,
		IP: s.By.IP, Detail: encode(detail),
	}
}

// usage returns the one record of a run (open-parts.md, Audit, usage).
func usage(s *State, now time.Time) journal.Usage {
	n := len(s.Steps)
	if c := s.Record.Compensation; c != nil {
		n += len(c.Steps)
	}
	detail := struct {
		Mode        skill.Mode   `json:"mode"`
		Status      skill.Status `json:"status"`
		Steps       int          `json:"steps"`
		Screenshots int          `json:"screenshots"`
	}{s.Plan.Mode, s.Status, n, s.Shots}
	return journal.Usage{ID: id.UsageID{UUID: id.New(s.ID.Shard())}, At: now, Kind: lifecycle.UsageBrowserSkillRun, Run: s.AgentRun, Agent: s.Agent, Detail: encode(detail)}
}

// after tells waiting callers of a change, and closes a page that is not needed any more.
func (k *kind) after(a cluster.Address, prev, next State, _ durable.Decision[State]) {
	switch next.Phase {
	case skill.Repreparing, skill.Committing, skill.Committed:
	default:
		k.clear(a)
	}
	if next.Phase == prev.Phase {
		return
	}
	if next.Phase == skill.Ended {
		ended.WithLabelValues(string(next.Plan.Mode), outcome(&next)).Inc()
		seconds.WithLabelValues(string(next.Plan.Mode)).Observe(next.FinishedAt.Sub(next.CreatedAt).Seconds())
		if e := k.cfg.Log.Info(); next.Status != skill.Succeeded && next.Status != skill.Rejected {
			k.log(e, &next).Str("status", string(next.Status)).Str("code", string(next.Code)).Msg("a browser skill did not land")
		}
	}
	if k.cfg.Changed != nil {
		k.cfg.Changed(next.ID)
	}
}

func outcome(s *State) string {
	if s.Code == skill.CodeUnknownOutcome {
		return string(s.Code)
	}
	return string(s.Status)
}

func (k *kind) log(e *zerolog.Event, s *State) *zerolog.Event {
	return e.Stringer("tenant", s.Tenant).Stringer("skill", s.Skill).Stringer("skill_run", s.ID)
}

var _ Store = (*store.SkillRuns)(nil)
