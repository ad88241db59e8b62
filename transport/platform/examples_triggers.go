package platform

import (
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/transport/edge"
)

const sampleHookSecret = "hksec_uA2oVd8QhH6mR0yqJp3sTz5wXk7bN1cE4fG9iLjKlMn"

var (
	sampleHook = api.Trigger{ID: id.TriggerID{UUID: sample(60)}, Name: "New issues", Kind: lifecycle.TriggerHook, Target: api.TriggerTarget{AgentID: &sampleAgentID},
		Enabled: true, Input: api.Value(`{"text":"Sort this issue."}`), HookURL: ptr("https://agents.example.com/hooks/" + sample(60).String()),
		LastFiredAt: &sampleTime, CreatedAt: sampleTime, UpdatedAt: sampleTime}
	sampleSchedule = api.Trigger{ID: id.TriggerID{UUID: sample(61)}, Name: "Every morning", Kind: lifecycle.TriggerSchedule, Target: api.TriggerTarget{AgentID: &sampleAgentID},
		Enabled: true, Schedule: &api.Schedule{Cron: "0 9 * * MON-FRI", Timezone: "Europe/Berlin"}, Input: api.Value(`{"text":"Sum up what happened."}`),
		LastFiredAt: &sampleTime, NextFireAt: &sampleTime, CreatedAt: sampleTime, UpdatedAt: sampleTime}
)

// describeTriggers says what the types of this section are.
func describeTriggers(t *edge.Table) {
	edge.Enum(t, lifecycle.TriggerKinds...)
	edge.Doc[api.Trigger](t, "Something that starts runs by itself.")
	edge.Doc[api.List[api.Trigger]](t, "A page of triggers.")
	edge.Doc[api.TriggerCreated](t, "A trigger with what is shown once.")
	edge.Doc[api.TriggerCreate](t, "A trigger to be.")
	edge.Doc[api.TriggerPatch](t, "A change of a trigger; what is left out stays.")
	edge.Doc[api.TriggerTarget](t, "What a trigger starts.")
	edge.Doc[api.TriggerFire](t, "What a fire hands over.")
	edge.Doc[api.Schedule](t, "When a schedule comes due.")
	edge.Doc[api.SchedulePatch](t, "A change of a schedule; what is left out stays.")
}
