package webhook

import (
	"encoding/json"
	"flag"
	"os"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// The bytes that receivers get (open-parts.md, Webhooks and Webhook data).
func TestBodies(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678900000, time.FixedZone("", 3600))
	agent, thread := "01940000-0000-7000-8000-00000000000a", "01940000-0000-7000-8000-00000000000b"
	completed := RunEnded{RunID: "01940000-0000-7000-8000-000000000001", AgentID: &agent, ThreadID: &thread, Status: "succeeded",
		Output: json.RawMessage(`{"text":"<Done> & dusted.", "json":{ "n" : 1.50 }}`), TokensIn: 12, TokensOut: 34, CostUSD: 0.00125, FinishedAt: at.UTC()}
	failed := completed
	failed.ThreadID, failed.Status, failed.Output, failed.Code, failed.Message = nil, "cancelled", nil, "CANCELLED", "The run was cancelled."
	asked := Approval{ApprovalID: "01940000-0000-7000-8000-000000000002", RunID: completed.RunID, Tool: "orders.refund", Risk: "high", AssigneeRole: "admin", URL: "https://agents.example.com/console/approvals/01940000-0000-7000-8000-000000000002",
		ExpiresAt: at.UTC().Add(time.Hour)}
	raised := asked
	raised.AssigneeRole = "owner"
	var got []byte
	for _, e := range []struct {
		t    Type
		data any
	}{
		{RunCompleted, completed}, {RunFailed, failed}, {ApprovalRequested, asked}, {ApprovalEscalated, raised},
		{ApprovalDecided, Decided{Approval: raised, Status: "edited", DecidedBy: "user:01940000-0000-7000-8000-000000000003", DecidedAt: at.UTC()}},
		{ApprovalDecided, Decided{Approval: asked, Status: "expired", DecidedBy: "system", DecidedAt: at.UTC()}},
	} {
		body := Encode("01940000-0000-7000-8000-000000000004", e.t, e.data, at)
		var back Envelope
		if err := json.Unmarshal(body, &back); err != nil || back.Type != e.t || !back.CreatedAt.Equal(at) {
			t.Errorf("%s: %v, read back as %+v", body, err, back)
		}
		got = append(append(got, body...), '\n')
	}
	const file = "testdata/bodies.jsonl"
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
