package platform

import (
	"context"
	"slices"
	"strings"
	"time"

	"agentsvc/schemas/api"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

// Feed opens the feeds of tenants.
type Feed interface {
	Open(ctx context.Context, v FeedViewer) (edge.Subscriber, error)
}

// FeedViewer is the caller to whom a feed is shown.
type FeedViewer struct {
	Tenant id.TenantID
	User   id.UserID // zero: a key
	Role   lifecycle.Role
	Topics []string
	// Decides reads the caller's rights and returns whether it may decide an approval. Open calls
	// it once the feed hears of all changes, so that none of rights is missed.
	Decides func(ctx context.Context) (func(assignee lifecycle.Role, node *id.NodeID) bool, error)
}

type watchTenant struct {
	Topics string `query:"topics" maxLength:"200" doc:"some of runs, approvals, resources, separated by commas; default all"`
}

// Payloads of the frames without a type in schemas/api.
type (
	feedReadyFrame struct{}
	feedLostFrame  struct {
		Topics []string `json:"topics" doc:"what has to be read again"`
	}
)

var feedFrames = []edge.Frame{
	{Type: event.FeedReady, Data: feedReadyFrame{}, Doc: "From here on changes are reported: read now."},
	{Type: event.RunChanged, Data: sampleRunChange, Doc: "A run has changed, or began."},
	{Type: event.ApprovalChanged, Data: sampleApprovalChange, Doc: "An approval that the caller may decide has changed, or was opened."},
	{Type: event.ResourceChanged, Data: sampleChange, Doc: "A resource that the caller may read has changed, began, or is gone."},
	{Type: event.FeedLost, Data: feedLostFrame{[]string{event.TopicRuns}}, Doc: "More has changed than is named: read again."},
	{Type: event.Heartbeat, Data: heartbeatFrame{}, Doc: "Every 15 s."},
}

func (p *Platform) feedRoutes(t *edge.Table) {
	edge.HandleStream(t, edge.Route{Method: "GET", Path: "/v1/feed", ID: "watchTenant", Summary: "Follow what changes",
		Description: "Names what has changed within a second of the commit, on any node, each object at most once in 250 ms. Beyond 50 changes a second there is feed.lost instead. " +
			"Nothing is replayed: connect, then read. A caller without the role admin sees neither approvals above its role nor what only admins manage. The stream ends with the key or session.",
		Tag: overviewTag, Role: lifecycle.RoleMember, Frames: feedFrames}, p.watchTenant)
}

func (p *Platform) watchTenant(ctx context.Context, c *edge.Caller, in *watchTenant) (edge.Subscriber, error) {
	v := FeedViewer{Tenant: c.Tenant, User: c.User, Role: c.Role, Topics: event.Topics}
	if in.Topics != "" {
		v.Topics = strings.Split(in.Topics, ",")
		for _, t := range v.Topics {
			if !slices.Contains(event.Topics, t) {
				return nil, problem.Invalid("topics", "must be some of "+strings.Join(event.Topics, ", ")+", separated by commas")
			}
		}
	}
	v.Decides = func(ctx context.Context) (func(lifecycle.Role, *id.NodeID) bool, error) {
		who, err := p.approver(ctx, c)
		return who.Decides, err
	}
	if p.Feed == nil {
		return nil, problem.Unavailable("This node has no feeds.", time.Second)
	}
	return p.Feed.Open(ctx, v)
}

// describeFeed adds the descriptions of the types of feed, overview and stats.
func describeFeed(t *edge.Table) {
	edge.Doc[api.Overview](t, "What happens now, and what needs attention.")
	edge.Doc[api.RunCounts](t, "Counts of runs.")
	edge.Doc[api.ApprovalCounts](t, "Counts of pending approvals.")
	edge.Doc[api.RiskCounts](t, "Counts of pending approvals by risk.")
	edge.Doc[api.OverviewDeliveries](t, "Counts of webhook deliveries.")
	edge.Doc[api.Attention](t, "One thing that needs attention.")
	edge.Doc[api.Stat](t, "The figures of one period.")
	edge.Doc[api.Items[api.Stat]](t, "Figures of periods, the oldest first.")
	edge.Doc[api.StatRuns](t, "Runs that ended in the period.")
	edge.Doc[api.StatApprovals](t, "Approvals that were opened and that ended in the period.")
	edge.Doc[api.StatDeliveries](t, "Webhook deliveries that ended in the period.")
	edge.Doc[api.Percentiles](t, "Percentiles, within 5 %.")
}
