package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/schedule"
)

const triggerWord = "trigger"

// trigger is a listed row.
type trigger struct {
	ID          id.TriggerID
	Name        string
	Kind        lifecycle.TriggerKind
	AgentID     *id.AgentID
	WorkflowID  *id.WorkflowID
	Enabled     bool
	Cron        *string
	Timezone    *string
	Input       api.Value
	LastFiredAt *time.Time
	NextFireAt  *time.Time
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

// shown returns the trigger without a hook's URL, which storage does not hold.
func (r *trigger) shown() *api.Trigger {
	t := &api.Trigger{ID: r.ID, Name: r.Name, Kind: r.Kind, Target: api.TriggerTarget{AgentID: r.AgentID, WorkflowID: r.WorkflowID}, Enabled: r.Enabled,
		Input: r.Input, LastFiredAt: r.LastFiredAt, NextFireAt: r.NextFireAt, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt}
	if r.Cron != nil && r.Timezone != nil {
		t.Schedule = &api.Schedule{Cron: *r.Cron, Timezone: *r.Timezone}
	}
	return t
}

// Triggers returns triggers, newest first, without their URLs.
func (v View) Triggers(ctx context.Context, at id.TriggerID, limit int) ([]api.Trigger, error) {
	from, n := before(at.UUID, limit)
	rows, err := listed[trigger](ctx, v, "triggers", v.tenant, from, n)
	if err != nil {
		return nil, err
	}
	out := make([]api.Trigger, len(rows))
	for i := range rows {
		out[i] = *rows[i].shown()
	}
	return out, nil
}

// Trigger returns one trigger, without its URL.
func (v View) Trigger(ctx context.Context, g id.TriggerID) (*api.Trigger, error) {
	row, err := found[trigger](triggerWord)(one[trigger](ctx, v, "trigger", v.tenant, g))
	if err != nil {
		return nil, err
	}
	return row.shown(), nil
}

// CreateTrigger creates a trigger. A hook has a secret, which is shown only now.
func (t *Tx) CreateTrigger(ctx context.Context, in *api.TriggerCreate) (*api.TriggerCreated, error) {
	row := &trigger{ID: id.TriggerID{UUID: id.NewAnywhere()}, Name: in.Name, Kind: in.Kind, AgentID: in.Target.AgentID, WorkflowID: in.Target.WorkflowID, Enabled: in.Enabled == nil || *in.Enabled,
		Input: in.Input}
	bad, err := t.holdTarget(ctx, &in.Target)
	if err != nil {
		return nil, err
	}
	switch scheduled := in.Kind == lifecycle.TriggerSchedule; {
	case scheduled && in.Schedule == nil:
		bad = append(bad, problem.Field{Path: "schedule", Message: "is required for a schedule"})
	case !scheduled && in.Schedule != nil:
		bad = append(bad, noSchedule)
	case scheduled:
		row.plan(in.Schedule.Cron, in.Schedule.Timezone)
	}
	if err := t.settle(ctx, row, bad, true); err != nil {
		return nil, err
	}
	var secret string
	var sealed []byte
	if row.Kind == lifecycle.TriggerHook {
		secret = newHookSecret()
		if sealed, err = t.sealHook(row.ID, secret); err != nil {
			return nil, err
		}
	}
	made, err := one[trigger](ctx, t.View, "trigger_insert", t.tenant, row.ID, row.Name, string(row.Kind), row.AgentID, row.Enabled, row.Cron, row.Timezone,
		jsonArg(row.Input), sealed, row.NextFireAt, row.WorkflowID)
	if err != nil {
		return nil, fmt.Errorf("insert trigger: %w", err)
	}
	if err := t.setTimer(ctx, made); err != nil {
		return nil, err
	}
	return &api.TriggerCreated{Trigger: *made.shown(), Secret: secret}, t.Audit(ctx, "trigger.create", "trigger", made.ID.UUID, nil)
}

// UpdateTrigger changes the fields set in the patch. A schedule whose times changed, or that
// is resumed, is next due counted from now.
func (t *Tx) UpdateTrigger(ctx context.Context, g id.TriggerID, in *api.TriggerPatch) (*api.Trigger, error) {
	var bad []problem.Field
	var err error
	if in.Target != nil { // lock the target before the trigger, as archiving does
		if bad, err = t.holdTarget(ctx, in.Target); err != nil {
			return nil, err
		}
	}
	row, err := t.lockTrigger(ctx, g)
	if err != nil {
		return nil, err
	}
	if in.Kind != nil && *in.Kind != row.Kind {
		bad = append(bad, problem.Field{Path: "kind", Message: "cannot be changed"})
	}
	resumed := in.Enabled != nil && *in.Enabled && !row.Enabled
	if in.Target != nil {
		row.AgentID, row.WorkflowID = in.Target.AgentID, in.Target.WorkflowID
	} else if resumed {
		gone, err := t.targetGone(ctx, row)
		if err != nil {
			return nil, err
		}
		bad = append(bad, gone...)
	}
	set(&row.Name, in.Name)
	set(&row.Enabled, in.Enabled)
	row.Input = in.Input.Or(row.Input)
	switch {
	case in.Schedule == nil:
	case row.Kind != lifecycle.TriggerSchedule:
		bad = append(bad, noSchedule)
	default:
		cron, zone := *row.Cron, *row.Timezone
		set(&cron, in.Schedule.Cron)
		set(&zone, in.Schedule.Timezone)
		row.plan(cron, zone)
	}
	if err := t.settle(ctx, row, bad, resumed || in.Schedule != nil); err != nil {
		return nil, err
	}
	row, err = one[trigger](ctx, t.View, "trigger_update", t.tenant, g, row.Name, row.AgentID, row.Enabled, row.Cron, row.Timezone, jsonArg(row.Input), row.NextFireAt,
		row.WorkflowID)
	if err != nil {
		return nil, fmt.Errorf("update trigger: %w", err)
	}
	if err := t.setTimer(ctx, row); err != nil {
		return nil, err
	}
	return row.shown(), t.Audit(ctx, "trigger.update", "trigger", g.UUID, nil)
}

func (t *Tx) lockTrigger(ctx context.Context, g id.TriggerID) (*trigger, error) {
	return found[trigger](triggerWord)(one[trigger](ctx, t.View, "trigger_lock", t.tenant, g))
}

// Complaints used in several places.
var (
	noSchedule = problem.Field{Path: "schedule", Message: "belongs to the kind schedule only"}
	noAgent    = problem.Field{Path: "target.agent_id", Message: "there is no such agent"}
	noWorkflow = problem.Field{Path: "target.workflow_id", Message: "there is no such workflow"}
)

// targetGone complains if the target of a trigger that is being resumed is archived. A
// transaction that archives it now waits for the trigger's row, and pauses it again.
func (t *Tx) targetGone(ctx context.Context, r *trigger) ([]problem.Field, error) {
	if r.AgentID != nil {
		_, ok, err := t.Published(ctx, *r.AgentID)
		if err == nil && !ok {
			return []problem.Field{noAgent}, nil
		}
		return nil, err
	}
	_, err := t.Workflow(ctx, *r.WorkflowID)
	if errors.Is(err, problem.New(problem.CodeNotFound, "")) {
		return []problem.Field{noWorkflow}, nil
	}
	return nil, err
}

// holdTarget validates a target, and locks its agent or workflow against archiving until the
// change is committed.
func (t *Tx) holdTarget(ctx context.Context, target *api.TriggerTarget) ([]problem.Field, error) {
	refer := &references{t: t}
	switch {
	case target.WorkflowID != nil && target.AgentID != nil:
		return []problem.Field{{Path: "target.workflow_id", Message: "cannot be given together with agent_id"}}, nil
	case target.WorkflowID != nil:
		refer.require(ctx, noWorkflow.Path, noWorkflow.Message, "trigger_workflow", target.WorkflowID)
	case target.AgentID == nil:
		return []problem.Field{{Path: "target.agent_id", Message: "is required"}}, nil
	default:
		refer.require(ctx, noAgent.Path, noAgent.Message, "trigger_agent", target.AgentID)
	}
	return refer.bad, refer.err
}

// plan sets the times of a schedule.
func (r *trigger) plan(cron, zone string) {
	if zone == "" {
		zone = "UTC"
	}
	r.Cron, r.Timezone = &cron, &zone
}

// everyMinute is a placeholder expression for checking only the time zone.
const everyMinute = "* * * * *"

// settle validates a trigger, in addition to the complaints in bad, and sets its next due
// time; with anew it is counted from now.
func (t *Tx) settle(ctx context.Context, r *trigger, bad []problem.Field, anew bool) error {
	var times *schedule.Schedule
	if r.Kind == lifecycle.TriggerSchedule && r.Cron != nil {
		var err error
		if _, err = schedule.Parse(everyMinute, *r.Timezone); err != nil {
			bad = append(bad, problem.Field{Path: "schedule.timezone", Message: err.Error()})
		} else if times, err = schedule.Parse(*r.Cron, *r.Timezone); err != nil {
			bad = append(bad, problem.Field{Path: "schedule.cron", Message: err.Error()})
		}
	}
	if bytes.Equal(r.Input, []byte("null")) {
		r.Input = nil
	}
	switch {
	case len(r.Input) > api.MaxTriggerInput:
		bad = append(bad, problem.Field{Path: "input", Message: "must have at most " + strconv.Itoa(api.MaxTriggerInput) + " bytes"})
	case r.Kind == lifecycle.TriggerHook && len(r.Input) > 0 && r.Input[0] != '{':
		bad = append(bad, problem.Field{Path: "input", Message: "must be a JSON object: the fields of a hook's body go over it"})
	}
	if len(bad) > 0 {
		return problem.Validation(bad...)
	}
	switch {
	case times == nil || !r.Enabled:
		r.NextFireAt = nil
	case anew:
		now, err := scalars[time.Time](ctx, t.View, "trigger_moment")
		if err != nil {
			return err
		}
		next := times.Next(now[0])
		r.NextFireAt = &next
	}
	return nil
}

// setTimer brings the timer in line with the row.
func (t *Tx) setTimer(ctx context.Context, r *trigger) error {
	var err error
	if r.NextFireAt != nil {
		_, err = t.exec(ctx, "trigger_timer_set", t.tenant, r.ID, *r.NextFireAt)
	} else {
		_, err = t.exec(ctx, "trigger_timer_drop", t.tenant, r.ID)
	}
	if err != nil {
		return fmt.Errorf("set the timer of trigger %s: %w", r.ID, err)
	}
	return nil
}

// RotateTrigger gives a hook a new secret.
func (t *Tx) RotateTrigger(ctx context.Context, g id.TriggerID) (*api.TriggerCreated, error) {
	row, err := t.lockTrigger(ctx, g)
	if err != nil {
		return nil, err
	}
	if row.Kind != lifecycle.TriggerHook {
		return nil, problem.Invalid("id", "a schedule has no secret")
	}
	secret := newHookSecret()
	sealed, err := t.sealHook(g, secret)
	if err != nil {
		return nil, err
	}
	if row, err = one[trigger](ctx, t.View, "trigger_rotate", t.tenant, g, sealed); err != nil {
		return nil, fmt.Errorf("rotate the secret of trigger %s: %w", g, err)
	}
	return &api.TriggerCreated{Trigger: *row.shown(), Secret: secret}, t.Audit(ctx, "trigger.rotate", "trigger", g.UUID, nil)
}

// DeleteTrigger deletes a trigger; its runs stay.
func (t *Tx) DeleteTrigger(ctx context.Context, g id.TriggerID) error {
	if err := t.execFound(ctx, problem.NotFound(triggerWord), "trigger_delete", t.tenant, g); err != nil {
		return err
	}
	if _, err := t.exec(ctx, "trigger_timer_drop", t.tenant, g); err != nil {
		return fmt.Errorf("drop the timer of trigger %s: %w", g, err)
	}
	return t.Audit(ctx, "trigger.delete", "trigger", g.UUID, nil)
}

// pauseTriggers pauses the triggers of an agent or a workflow.
func (t *Tx) pauseTriggers(ctx context.Context, target id.UUID) error {
	paused, err := scalars[id.UUID](ctx, t.View, "triggers_pause", t.tenant, target)
	if err == nil {
		_, err = t.exec(ctx, "triggers_pause_timers", t.tenant, target)
	}
	if err == nil {
		err = t.auditAll(ctx, "trigger.update", "trigger", paused)
	}
	if err != nil {
		return fmt.Errorf("pause the triggers of %s: %w", target, err)
	}
	return nil
}

// newHookSecret returns a new secret for signing a hook's calls.
func newHookSecret() string {
	var b [32]byte
	rand.Read(b[:])
	return "hksec_" + base64.RawURLEncoding.EncodeToString(b[:])
}

// hookAt returns the AAD of a hook's secret.
func hookAt(t id.TenantID, g id.TriggerID) vault.AAD {
	return vault.AAD{Tenant: t, Table: "triggers", Row: g.String(), Column: "secret"}
}

func (t *Tx) sealHook(g id.TriggerID, secret string) ([]byte, error) {
	sealed, err := t.vault.Seal(hookAt(t.tenant, g), []byte(secret))
	if err != nil {
		return nil, fmt.Errorf("seal the secret of trigger %s: %w", g, err)
	}
	return sealed, nil
}

// Hooks looks up hooks by id alone, across tenants: a hook's URL does not name the tenant.
type Hooks struct {
	view  View
	vault *vault.Vault
}

// NewHooks returns a Hooks over a pool of the role svc_system.
func NewHooks(pool *pgxpool.Pool, v *vault.Vault) *Hooks {
	return &Hooks{View{q: single{pool: pool}}, v}
}

// Hook is an enabled hook.
type Hook struct {
	Tenant id.TenantID
	ID     id.TriggerID
	Target api.TriggerTarget
	Input  api.Value // an object, or nil
	Secret vault.Secret
}

// Find returns a hook; nil if the id is unknown, a schedule's, or paused.
func (h *Hooks) Find(ctx context.Context, g id.TriggerID) (*Hook, error) {
	row, err := one[struct {
		Tenant   id.TenantID
		ID       id.TriggerID
		Agent    *id.AgentID
		Workflow *id.WorkflowID
		Input    api.Value
		Secret   []byte // sealed
	}](ctx, h.view, "hook", g)
	if err != nil || row == nil {
		return nil, err
	}
	secret, err := h.vault.Open(hookAt(row.Tenant, g), row.Secret)
	if err != nil {
		return nil, fmt.Errorf("open the secret of trigger %s: %w", g, err)
	}
	return &Hook{Tenant: row.Tenant, ID: row.ID, Target: api.TriggerTarget{AgentID: row.Agent, WorkflowID: row.Workflow}, Input: row.Input, Secret: vault.NewSecret(secret)}, nil
}

// Schedules gives the trigger actors access to the tables.
type Schedules struct{ pool *pgxpool.Pool }

// NewSchedules returns a Schedules over a pool of the role svc_system.
func NewSchedules(pool *pgxpool.Pool) *Schedules { return &Schedules{pool} }

// Schedule holds the columns of a trigger that its actor needs. Due is nil for a hook and
// for a schedule that is paused, Cron and Timezone for a hook.
type Schedule struct {
	Agent          *id.AgentID
	Workflow       *id.WorkflowID
	Cron, Timezone *string
	Input          api.Value
	Due            *time.Time
	Version, Epoch int64
}

func (s *Schedules) view(t id.TenantID) View {
	return View{q: single{pool: s.pool, tenant: t}, tenant: t}
}

// Schedule returns a trigger; nil if there is none.
func (s *Schedules) Schedule(ctx context.Context, t id.TenantID, g id.TriggerID) (*Schedule, error) {
	return one[Schedule](ctx, s.view(t), "schedule", t, g)
}

// Published returns the published version of an agent, 0 if it has none or is archived.
func (s *Schedules) Published(ctx context.Context, t id.TenantID, a id.AgentID) (int, error) {
	version, _, err := s.view(t).Published(ctx, a)
	return version, err
}

// StartWorkflow returns what a new run of a workflow's published version needs. The error is that
// of View.StartWorkflow.
func (s *Schedules) StartWorkflow(ctx context.Context, t id.TenantID, w id.WorkflowID) (*WorkflowStart, error) {
	return s.view(t).StartWorkflow(ctx, w, false)
}

// HasRun reports whether there is a run with that id, of an agent or of a workflow.
func (s *Schedules) HasRun(ctx context.Context, t id.TenantID, r id.RunID) (bool, error) {
	found, err := scalars[id.RunID](ctx, s.view(t), "run_exists", t, r)
	return len(found) > 0, err
}

// Firing is the time at which a trigger started a run.
type Firing struct {
	Tenant  id.TenantID
	Trigger id.TriggerID
	At      time.Time
}

// NoteFired advances last_fired_at of many triggers; the value never goes back. It does not
// wait for locks: it skips the rows that another transaction is changing, and returns them.
func (s *Schedules) NoteFired(ctx context.Context, fired []Firing) (skipped []Firing, err error) {
	n := len(fired)
	tenants, triggers, at := make([]id.TenantID, n), make([]id.TriggerID, n), make([]time.Time, n)
	for i, f := range fired {
		tenants[i], triggers[i], at[i] = f.Tenant, f.Trigger, f.At
	}
	return all[Firing](ctx, s.view(id.TenantID{}), "triggers_fired", tenants, triggers, at)
}
