package toolbox

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"agentsvc/schemas/model"
	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
	"agentsvc/transport/mcp"
)

// The lease ends while a call is written, and the grant is withdrawn before the call may be
// sent again. If a part of the call was sent, its outcome is unknown.
func TestACallThatIsCutOffAndThenRefused(t *testing.T) {
	t.Parallel()
	w := newShops(t)
	w.shop("shop", []string{"buy"}, nil)
	var left atomic.Int64 // looks at the lease until it ends
	var ends func()
	w.box.Guard = egress.New(egress.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Live: func() bool {
		if left.Add(-1) >= 0 {
			return true
		}
		ends()
		return false
	}})
	w.box.Gateway = mcp.New(mcp.Config{Guard: w.box.Guard, Log: zerolog.Nop()})
	t.Cleanup(func() { w.box.Gateway.Close(context.WithoutCancel(t.Context())) })
	ends = func() {}
	left.Store(1 << 30)
	args := `{"x":"` + strings.Repeat("x", 256<<10) + `"}`
	plan, err := w.box.Plan(t.Context(), w.caller, 1, []model.Call{{ID: "c", Name: "shop.buy", Args: json.RawMessage(args)}})
	if err != nil || plan[0].Refused != nil {
		t.Fatal(err, plan[0].Refused)
	}
	plan[0].Repeat = true // the tool recognises its key
	unknown, nothing := 0, 0
	for looks := int64(0); looks < 10; looks++ {
		w.exec(`UPDATE tool_grants SET effect = 'allow' WHERE tenant_id = $1`, w.caller.Tenant)
		var once sync.Once
		ends = func() {
			once.Do(func() { w.exec(`UPDATE tool_grants SET effect = 'deny' WHERE tenant_id = $1`, w.caller.Tenant) })
		}
		left.Store(looks)
		out := w.box.Call(t.Context(), w.caller, 1, plan[0])
		switch {
		case strings.Contains(out.Content, tool.ErrUnknownOutcome):
			unknown++
		case strings.Contains(out.Content, "Nothing was run.") && out.Unsent:
			nothing++
		}
	}
	if unknown == 0 || nothing == 0 {
		t.Errorf("the outcome was %d times unknown, and %d times nothing was sent: void", unknown, nothing)
	}
}
