package rollup

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Levels are the lengths of the stored sums in minutes. Those of 15 minutes serve days and
// hours of zones that are not whole hours from UTC.
var Levels = []int{1, 15, 60}

// Tally is a row of the table tallies.
type Tally struct {
	TenantID  id.TenantID
	What      lifecycle.Tally
	At        time.Time
	AgentID   *id.AgentID
	MS        *int64
	FirstMS   *int64
	TokensIn  int64
	TokensOut int64
	CostUSD   float64
}

// Sums are the figures of a period.
type Sums struct {
	Succeeded, Failed, Cancelled   int64
	Requested, Decided, Expired    int64
	Delivered, Undelivered         int64
	TokensIn, TokensOut            int64
	CostUSD                        float64
	Duration, FirstToken, Decision Histogram // in milliseconds
}

// Count adds a tally.
func (s *Sums) Count(t *Tally) {
	switch t.What {
	case lifecycle.TallySucceeded:
		s.Succeeded++
	case lifecycle.TallyFailed:
		s.Failed++
	case lifecycle.TallyCancelled:
		s.Cancelled++
	case lifecycle.TallyRequested:
		s.Requested++
	case lifecycle.TallyDecided:
		s.Decided++
		if t.MS != nil {
			s.Decision.Add(*t.MS)
		}
		return
	case lifecycle.TallyExpired:
		s.Expired++
	case lifecycle.TallyDelivered:
		s.Delivered++
	case lifecycle.TallyUndelivered:
		s.Undelivered++
	}
	if t.MS != nil {
		s.Duration.Add(*t.MS)
	}
	if t.FirstMS != nil {
		s.FirstToken.Add(*t.FirstMS)
	}
	s.TokensIn = min(s.TokensIn+min(t.TokensIn, most), most)
	s.TokensOut = min(s.TokensOut+min(t.TokensOut, most), most)
	s.CostUSD = min(s.CostUSD+t.CostUSD, most)
}

// most bounds the tokens and the cost of a period. What is counted today never reaches it; it keeps
// rows of older versions, whose counts had no bound, from failing the fold of all tenants.
const most = 1e14
