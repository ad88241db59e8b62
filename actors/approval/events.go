package approval

import (
	"time"

	"agentsvc/persistence/journal"
	"agentsvc/schemas/webhook"
)

// What the tenant's webhook endpoints hear of an approval (open-parts.md, Webhook
// data). That it was requested, and that it is cancelled, they hear from its run.

// reportDecided reports the decision that ends the approval.
func (k *kind) reportDecided(w *journal.Commit, s *State, by string, now time.Time) {
	if !k.hears(s) {
		return
	}
	data := webhook.Decided{Approval: s.data(), Status: string(s.Status), DecidedBy: by, DecidedAt: journal.Kept(*s.DecidedAt)}
	w.Events = append(w.Events, journal.NewEvent(s.ID.Shard(), webhook.ApprovalDecided, data, now))
}

// reportEscalated reports that a higher role decides from now on.
func (k *kind) reportEscalated(w *journal.Commit, s *State, now time.Time) {
	if k.hears(s) {
		w.Events = append(w.Events, journal.NewEvent(s.ID.Shard(), webhook.ApprovalEscalated, s.data(), now))
	}
}

func (k *kind) hears(s *State) bool { return k.cfg.Hears != nil && k.cfg.Hears(s.Tenant) }

func (s *State) data() webhook.Approval {
	return webhook.Approval{
		ApprovalID: s.ID.String(), RunID: s.Run.String(), Tool: s.Tool, Risk: string(s.Risk), AssigneeRole: string(s.Assignee),
		ExpiresAt: journal.Kept(s.ExpiresAt),
	}
}
