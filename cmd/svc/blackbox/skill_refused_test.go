package blackbox

import (
	"strings"
	"testing"
	"time"
)

// A Chromium elsewhere that refuses is no browser: a dry run is BROWSER_SKILL_UNAVAILABLE (service.md, Errors), which
// the model hears too, and so is a recorder session.
func TestABrowserElsewhereThatRefuses(t *testing.T) {
	n := newNode(t, "SVC_OUTBOUND_ALLOW=127.0.0.0/8", "SVC_BROWSER_CDP=http://"+reserved(t))
	n.start()
	c := n.tenant("refused")
	b := c.backOffice(t, "Cancel", object{})
	ctx := within(t, time.Minute)
	if x := c.ask(t, ctx, 503, "POST", "/v1/browser-skills/"+b.skill+"/dry-run", object{"params": object{"order": "1001", "cause": "stock"}}, nil); x.code() != "BROWSER_SKILL_UNAVAILABLE" {
		t.Errorf("a dry run: %s", x)
	}
	for _, op := range []string{`dry_run {"order":"1001","cause":"stock"}`, `run {"order":"1001","cause":"stock","reason":"r"}`} {
		r := c.poll(t, ctx, c.runOnce(t, ctx, b.agent, `/call browser_skill:`+b.slug+`.`+op), "succeeded")
		if got := toolOutput(r); !strings.Contains(got, "BROWSER_SKILL_UNAVAILABLE") {
			t.Errorf("%s: the model heard %s", op, got)
		}
	}
	if x := c.ask(t, ctx, 503, "POST", "/v1/browser-skills/recorder-sessions", object{"start_url": "https://shop.example/"}, nil); x.code() != "BROWSER_SKILL_UNAVAILABLE" {
		t.Errorf("a recorder session: %s", x)
	}
	if b.Effects("1001") != 0 {
		t.Error("the order was cancelled")
	}
}
