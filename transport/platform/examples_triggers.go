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

// describeTriggers adds the descriptions of this section's types.
func describeTriggers(t *edge.Table) {
	edge.Enum(t, lifecycle.TriggerKinds...)
	edge.Doc[api.Trigger](t, "Starts runs automatically.")
	edge.Doc[api.List[api.Trigger]](t, "A page of triggers.")
	edge.Doc[api.TriggerCreated](t, "A trigger with the secret that is shown once.")
	edge.Doc[api.TriggerCreate](t, "A trigger to create.")
	edge.Doc[api.TriggerPatch](t, "A change of a trigger; omitted fields stay.")
	edge.Doc[api.TriggerTarget](t, "The run that a trigger starts.")
	edge.Doc[api.TriggerFire](t, "The input of a manual fire.")
	edge.Doc[api.Schedule](t, "The times of a schedule.")
	edge.Doc[api.SchedulePatch](t, "A change of a schedule; omitted fields stay.")
}
