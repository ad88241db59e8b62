package blackbox

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentsvc/transport/browser/site"
)

// figure returns one number of a node's metrics.
func (n *node) figure(t *testing.T, name string) float64 {
	t.Helper()
	resp, err := http.Get(n.base + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			f, err := strconv.ParseFloat(v, 64)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// Eight runs of browser skills at once on one node, six of them of one tenant: each ends, the tenants take turns,
// and while people decide no page is open and the node has no goroutine for them.
func TestEightBrowserSkillsAtOnce(t *testing.T) {
	n := newNode(t, "SVC_OUTBOUND_ALLOW=127.0.0.0/8", "SVC_SKILL_STEP_TIMEOUT=20s")
	n.start()
	ctx := within(t, 2*time.Minute)
	tenants := []*caller{n.tenant("busy"), n.tenant("second"), n.tenant("third")}
	offices := make([]*backOffice, len(tenants))
	for i, c := range tenants {
		offices[i] = c.backOffice(t, "Cancel", object{})
	}
	// The browser has been started, and everything that a first run opens is open.
	tenants[0].poll(t, ctx, tenants[0].runOnce(t, ctx, offices[0].agent, `/call browser_skill:`+offices[0].slug+`.dry_run {"order":"1004","cause":"stock"}`), "succeeded")
	eventually(t, ctx, "no page is open", func() bool { return n.figure(t, "svc_browser_sessions") == 0 })
	before := n.figure(t, "go_goroutines")

	of := []int{0, 0, 0, 0, 0, 0, 1, 2} // whose run it is
	runs := make([]string, len(of))
	for i, x := range of {
		order := fmt.Sprint(7000 + i)
		offices[x].Add(site.Order{ID: order, Customer: "Ada Lovelace", Item: "Desk lamp", Total: 49.9})
		runs[i] = tenants[x].runOnce(t, ctx, offices[x].agent, `/call browser_skill:`+offices[x].slug+`.run {"order":"`+order+`","cause":"stock","reason":"r"}`)
	}
	type waits struct {
		i  int
		at time.Time
		id string
	}
	var order []waits
	for i, x := range of {
		tenants[x].poll(t, ctx, runs[i], "waiting_approval")
		var list struct {
			Items []struct {
				ID        string
				CreatedAt time.Time `json:"created_at"`
			}
		}
		tenants[x].ask(t, ctx, 200, "GET", "/v1/approvals?status=pending&run_id="+runs[i], nil, &list)
		if len(list.Items) != 1 {
			t.Fatalf("%d approvals wait", len(list.Items))
		}
		order = append(order, waits{i, list.Items[0].CreatedAt, list.Items[0].ID})
	}
	slices.SortFunc(order, func(x, y waits) int { return x.at.Compare(y.at) })
	if last := order[len(order)-1]; of[last.i] != 0 {
		t.Errorf("a tenant with one run waited for all six of another: %+v", order)
	}
	if got := n.figure(t, "svc_browser_sessions"); got != 0 {
		t.Errorf("%v pages are open while people decide", got)
	}
	eventually(t, ctx, "no goroutine waits with them", func() bool { return n.figure(t, "go_goroutines") <= before+10 })
	each(len(order), len(order), func(i int) {
		w := order[i]
		c := tenants[of[w.i]]
		if err := c.once(context.WithoutCancel(ctx), "/v1/approvals/"+w.id+"/decision", "decision of "+w.id, object{"action": "approve"}, &object{}); err != nil {
			t.Error(err)
		}
	})
	for i, x := range of {
		tenants[x].poll(t, ctx, runs[i], "succeeded")
		if got := offices[x].Effects(fmt.Sprint(7000 + i)); got != 1 {
			t.Errorf("order %d was cancelled %d times", 7000+i, got)
		}
	}
}
