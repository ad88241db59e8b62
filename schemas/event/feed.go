package event

// Types of the tenant's feed (console.md, GET /v1/feed). Its frames have no ids: there is no
// replay.
const (
	FeedReady       Type = "feed.ready"
	FeedLost        Type = "feed.lost"
	RunChanged      Type = "run.changed"
	ApprovalChanged Type = "approval.changed"
	ResourceChanged Type = "resource.changed"
)

// Topics of the feed.
const (
	TopicRuns      = "runs"
	TopicApprovals = "approvals"
	TopicResources = "resources"
)

// Topics lists the topics, in the specification's order.
var Topics = []string{TopicRuns, TopicApprovals, TopicResources}
