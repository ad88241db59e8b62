package api

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// MaxTriggerInput is the maximum size of a trigger's input in bytes.
const MaxTriggerInput = 64 << 10

// Trigger is a trigger as open-parts.md, Hooks defines it, without its secret.
type Trigger struct {
	ID          id.TriggerID          `json:"id" doc:"The id, a version 7 UUID."`
	Name        string                `json:"name" doc:"For people."`
	Kind        lifecycle.TriggerKind `json:"kind" doc:"What fires it, besides a person."`
	Target      TriggerTarget         `json:"target" doc:"What it starts."`
	Enabled     bool                  `json:"enabled" doc:"false: it is paused."`
	Schedule    *Schedule             `json:"schedule" doc:"When it comes due; null: it is a hook."`
	Input       Value                 `json:"input" doc:"What its runs get; a hook's body goes over it, field by field."`
	HookURL     *string               `json:"hook_url" doc:"Where a hook is called; null: it is a schedule."`
	LastFiredAt *time.Time            `json:"last_fired_at" doc:"When it last started a run; null: never. Of a hook and of a person's fire it may be some seconds behind."`
	NextFireAt  *time.Time            `json:"next_fire_at" doc:"When a schedule comes due; null: it is paused, or a hook."`
	CreatedAt   time.Time             `json:"created_at" doc:"UTC."`
	UpdatedAt   time.Time             `json:"updated_at" doc:"UTC."`
}

// TriggerCreated is a trigger with the secret that is shown once.
type TriggerCreated struct {
	Trigger
	Secret string `json:"secret,omitempty" doc:"What a hook's calls are signed with; never shown again. Absent: it is a schedule."`
}

// TriggerTarget is the target of a trigger: exactly one member is set.
type TriggerTarget struct {
	AgentID    *id.AgentID    `json:"agent_id,omitempty" doc:"An agent."`
	WorkflowID *id.WorkflowID `json:"workflow_id,omitempty" doc:"A workflow."`
}

// Schedule holds the times of a schedule.
type Schedule struct {
	Cron     string `json:"cron" maxLength:"200" doc:"Minute, hour, day of month, month, day of week: numbers, ranges, steps, lists and names; 0 and 7 are Sunday. One that names hours means the clock on the wall: a time that is skipped comes due after the gap, one that is shown twice comes due once."`
	Timezone string `json:"timezone,omitempty" maxLength:"100" default:"UTC" doc:"UTC, or a name of the IANA time zone database such as Europe/Berlin. Omitted: UTC."`
}

// TriggerCreate is the body of POST /v1/triggers.
type TriggerCreate struct {
	Name     string                `json:"name" minLength:"1" maxLength:"120" doc:"For people."`
	Kind     lifecycle.TriggerKind `json:"kind" doc:"What fires it, besides a person. It stays."`
	Target   TriggerTarget         `json:"target" doc:"What it starts."`
	Enabled  *bool                 `json:"enabled,omitempty" default:"true" doc:"Omitted: true."`
	Schedule *Schedule             `json:"schedule,omitempty" null:"true" doc:"When it comes due: required for a schedule, refused for a hook."`
	Input    Value                 `json:"input,omitempty" doc:"What its runs get, up to 64 KiB; of a hook a JSON object."`
}

// TriggerPatch is the body of PATCH /v1/triggers/{id}.
type TriggerPatch struct {
	Name     *string                `json:"name,omitempty" minLength:"1" maxLength:"120" doc:"For people."`
	Kind     *lifecycle.TriggerKind `json:"kind,omitempty" doc:"It stays: another one is refused."`
	Target   *TriggerTarget         `json:"target,omitempty" doc:"What it starts."`
	Enabled  *bool                  `json:"enabled,omitempty" doc:"false pauses it. A schedule that goes on awaits its next time, and catches up on none."`
	Schedule *SchedulePatch         `json:"schedule,omitempty" doc:"When it comes due from now on."`
	Input    Opt[Value]             `json:"input,omitzero" doc:"What its runs get; null: nothing."`
}

// SchedulePatch is a change of a schedule; omitted fields stay.
type SchedulePatch struct {
	Cron     *string `json:"cron,omitempty" maxLength:"200" doc:"Minute, hour, day of month, month, day of week."`
	Timezone *string `json:"timezone,omitempty" maxLength:"100" doc:"A name of the IANA time zone database."`
}

// TriggerFire is the body of POST /v1/triggers/{id}/fire.
type TriggerFire struct {
	Input Value `json:"input,omitempty" doc:"Where it and the trigger's input are objects, its fields go over the trigger's; else it takes its place."`
}
