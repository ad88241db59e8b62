package approval

import (
	"time"

	"agentsvc/persistence/journal"
	"agentsvc/schemas/api"
	"agentsvc/schemas/webhook"
)

// The webhook events of an approval (open-parts.md, Webhook data). Its run reports that it was
// requested or cancelled.

// reportDecided reports the decision that ends the approval.
func (k *kind) reportDecided(w *journal.Commit, s *State, by string, now time.Time) {
	if !k.hears(s) {
		return
	}
	data := webhook.Decided{Approval: k.data(s), Status: string(s.Status), DecidedBy: by, DecidedAt: journal.Kept(*s.DecidedAt)}
	w.Events = append(w.Events, journal.NewEvent(s.ID.Shard(), webhook.ApprovalDecided, data, now))
}

// reportEscalated reports that a higher role decides now.
func (k *kind) reportEscalated(w *journal.Commit, s *State, now time.Time) {
	if k.hears(s) {
		w.Events = append(w.Events, journal.NewEvent(s.ID.Shard(), webhook.ApprovalEscalated, k.data(s), now))
	}
}

func (k *kind) hears(s *State) bool { return k.cfg.Hears != nil && k.cfg.Hears(s.Tenant) }

func (k *kind) data(s *State) webhook.Approval {
	return webhook.Approval{
		ApprovalID: s.ID.String(), RunID: s.Run.String(), Tool: s.Tool, Risk: string(s.Risk), AssigneeRole: string(s.Assignee),
		ExpiresAt: journal.Kept(s.ExpiresAt), URL: api.ApprovalURL(k.cfg.PublicURL, s.ID),
	}
}
