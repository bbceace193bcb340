// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"fmt"
	"strings"

	"cozystack.io/gpu/pkg/model"
)

// exceeded says why the pool does not hold what the write asks for. Of a pool
// that is not rooted at the writer's own tenant it tells what is free and
// nothing else: how much others use is not the writer's to know.
func exceeded(w Write, quotaKey string, amount, more int64, root string, pool model.Pool) Fault {
	free := max(0, pool.Left())
	asked := fmt.Sprintf("%s: %d are asked for", quotaKey, amount)
	if more != amount {
		asked = fmt.Sprintf("%s: %d are asked for, %d more than counted so far", quotaKey, amount, more)
	}
	if w.Key.Resource == Tenants {
		asked = fmt.Sprintf("%s: a budget of %d is asked for", quotaKey, amount)
	}
	if root != w.Key.Namespace {
		return Fault{quotaKey, fmt.Sprintf("%s, but only %d are free in the budget of a tenant above", asked, free)}
	}
	var taken []string
	for _, part := range []struct {
		amount int64
		text   string
	}{
		{pool.Used, "%d in use"}, {pool.Reserved, "%d reserved by writes in flight"}, {pool.CarvedOut, "%d set aside for tenants below"},
	} {
		if part.amount != 0 {
			taken = append(taken, fmt.Sprintf(part.text, part.amount))
		}
	}
	state := "nothing in use"
	if len(taken) > 0 {
		state = strings.Join(taken, ", ")
	}
	return Fault{quotaKey, fmt.Sprintf("%s, but only %d are free in the budget of namespace %s: of %d, %s", asked, free, root, pool.Limit, state)}
}

// lowered warns of a budget that is less than what is in use.
func lowered(quotaKey string, amount int64, pool model.Pool) string {
	taken := pool.CarvedOut + pool.Used + pool.Reserved
	if amount >= taken {
		return ""
	}
	return fmt.Sprintf("%s: %d is less than the %d in use or set aside; nothing more is admitted until that has gone down", quotaKey, amount, taken)
}
