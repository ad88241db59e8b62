//go:build !race

package stream

import "testing"

// The race detector multiplies the cost of a history, and sees in a few of them what it sees in many.
func TestLawsOfReadersInManyHistories(t *testing.T) {
	noGap(t, 400)
	exactFrames(t, 3)
}
