package notice

import (
	"agentsvc/schemas/event"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// Topics is a set of topics.
type Topics uint8

// Topics of the feed. Of two topics that do not both fit, the one that stands first is sent.
const (
	Approvals Topics = 1 << iota
	Resources
	Runs
	All = Approvals | Resources | Runs
)

var topics = []Topics{Approvals, Resources, Runs}

var topicNames = map[string]Topics{event.TopicRuns: Runs, event.TopicApprovals: Approvals, event.TopicResources: Resources}

// Topic returns the topic of that name; ok is false for another name.
func Topic(name string) (t Topics, ok bool) {
	t, ok = topicNames[name]
	return t, ok
}

// names returns the topics in the order of the specification.
func (t Topics) names() []string {
	out := []string{}
	for _, name := range event.Topics {
		if topicNames[name]&t != 0 {
			out = append(out, name)
		}
	}
	return out
}

// topic returns the topic of a kind, 0 for one that has none: a new message is seen by the run
// that it starts.
func topic(kind string) Topics {
	switch kind {
	case msg.ChangedRun:
		return Runs
	case msg.ChangedApproval:
		return Approvals
	case "message":
		return 0
	}
	return Resources
}

// forMembers are the kinds of resources that members may read.
var forMembers = map[string]bool{
	"agent": true, "workflow": true, "thread": true, "attachment": true, "kb": true, "kb.document": true, "kb.source": true,
	"browser_skill": true, "browser_skill_run": true, "end_user": true, "tenant": true,
}

func mayRead(role lifecycle.Role, kind string) bool {
	return forMembers[kind] || role.Satisfies(lifecycle.RoleAdmin)
}
