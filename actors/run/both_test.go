package run

import (
	"encoding/json"
	"testing"

	"agentsvc/actors/durable"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
)

// A run with evidence and a deliverable renders an answer only once it cites something, and the reply has its citations.
func TestEvidenceAndADeliverable(t *testing.T) {
	d := evidenceRun(t, withBase)
	d.Next.Input = json.RawMessage(`{"text":"what?","options":{"evidence":true,"deliverable":"html"}}`)
	d = decide(t, d.Next, found(0, 1, 2), t0)
	d = decide(t, d.Next, at(citing("no"), 1), t0)
	if d.Next.Delivers || d.Next.Open == nil {
		t.Fatalf("an answer without a citation is rendered: %+v", d.Next.Kept)
	}
	d = decide(t, d.Next, at(citing("yes", "kb:x#1"), 2), t0)
	owed := Machine{}.Owed(d.Next)
	if !d.Next.Delivers || d.Next.Status != lifecycle.RunRunning || len(owed) != 1 || owed[0].Key() != deliverKey {
		t.Fatalf("%s owes %v", d.Next.Status, owed)
	}
	verdict := d.Next.Final
	d = decide(t, d.Next, durable.Activated{Epoch: 2}, t0)
	if owed := (Machine{}).Owed(d.Next); len(owed) != 1 || owed[0].Key() != deliverKey {
		t.Fatalf("after a crash it owes %v", owed)
	}
	d = decide(t, d.Next, Delivered{Verdict: verdict, Artifact: &Artifact{}}, t0)
	e, ok := d.Facts[len(d.Facts)-1].(Ended)
	if d.Next.Status != lifecycle.RunSucceeded || !ok || e.Reply != "yes" || len(e.Citations) != 1 || e.Citations[0] != (knowledge.Citation{Cite: "kb:x#1"}) {
		t.Fatalf("%s %+v", d.Next.Status, d.Facts)
	}
}
