// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func TestConditionsSayWhatIsWrongAndWhatToDo(t *testing.T) {
	token := source("token", "not-a-real-token")
	for name, tc := range map[string]struct {
		class          *v1alpha1.GPUClass
		facts          Facts
		conflict, lack metav1.ConditionStatus
		reason, says   string // of LicenseSecretMissing
	}{
		"all is well":                  {class("l40s", "token"), Facts{Sources: sources(token)}, metav1.ConditionFalse, metav1.ConditionFalse, ReasonSecretFound, "hoster/token"},
		"no licence is needed":         {class("l40s", ""), Facts{Sources: sources()}, metav1.ConditionFalse, metav1.ConditionFalse, ReasonNoLicenseNeeded, "names no licence"},
		"the Secret is missing":        {class("l40s", "token"), Facts{Sources: sources()}, metav1.ConditionFalse, metav1.ConditionTrue, ReasonSecretNotFound, "there is no Secret hoster/token"},
		"the token is empty":           {class("l40s", "token"), Facts{Sources: sources(source("token", ""))}, metav1.ConditionFalse, metav1.ConditionTrue, ReasonTokenMissing, gpu.LicenseTokenKey},
		"an older class has the name":  {class("l40s", ""), Facts{Holder: "old", Sources: sources()}, metav1.ConditionTrue, metav1.ConditionFalse, ReasonNoLicenseNeeded, ""},
		"a Secret stands in the way":   {class("l40s", "token"), Facts{Sources: sources(token), Blocked: []string{"b", "a"}}, metav1.ConditionFalse, metav1.ConditionFalse, ReasonCopiesBlocked, "stands in the way in a, b;"},
		"Secrets stand in many ways":   {class("l40s", "token"), Facts{Sources: sources(token), Blocked: []string{"a", "b", "c", "d", "e", "f", "g"}}, metav1.ConditionFalse, metav1.ConditionFalse, ReasonCopiesBlocked, "in a, b, c, d, e and 2 more;"},
		"a missing Secret comes first": {class("l40s", "token"), Facts{Sources: sources(), Blocked: []string{"a"}}, metav1.ConditionFalse, metav1.ConditionTrue, ReasonSecretNotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			status, changed := Status(tc.class, tc.facts, noon)
			assert.True(t, changed)
			assert.EqualValues(t, 3, status.ObservedGeneration)
			require.Len(t, status.Conditions, 2)
			for _, condition := range status.Conditions {
				assert.NotEmpty(t, condition.Reason)
				assert.NotEmpty(t, condition.Message)
				assert.EqualValues(t, 3, condition.ObservedGeneration)
				assert.True(t, condition.LastTransitionTime.Time.Equal(noon))
			}
			conflict := meta.FindStatusCondition(status.Conditions, gpu.ConditionResourceNameConflict)
			lack := meta.FindStatusCondition(status.Conditions, gpu.ConditionLicenseSecretMissing)
			assert.Equal(t, tc.conflict, conflict.Status)
			assert.Contains(t, conflict.Message, tc.facts.Holder)
			assert.Equal(t, tc.lack, lack.Status)
			assert.Equal(t, tc.reason, lack.Reason)
			assert.Contains(t, lack.Message, tc.says)

			tc.class.Status = status
			again, changed := Status(tc.class, tc.facts, noon.Add(time.Hour))
			assert.False(t, changed, "what is written already is not written again")
			assert.Equal(t, status, again)
		})
	}
}

func TestTransitionTimeChangesWithTheStatusOnly(t *testing.T) {
	c := class("l40s", "token")
	token := sources(source("token", "not-a-real-token"))
	c.Status, _ = Status(c, Facts{Sources: token}, noon)
	later := noon.Add(time.Hour)

	blocked, changed := Status(c, Facts{Sources: token, Blocked: []string{"a"}}, later)
	assert.True(t, changed)
	assert.True(t, meta.FindStatusCondition(blocked.Conditions, gpu.ConditionLicenseSecretMissing).LastTransitionTime.Time.Equal(noon))

	missing, _ := Status(c, Facts{Sources: sources()}, later)
	assert.True(t, meta.FindStatusCondition(missing.Conditions, gpu.ConditionLicenseSecretMissing).LastTransitionTime.Time.Equal(later))
	assert.True(t, meta.FindStatusCondition(missing.Conditions, gpu.ConditionResourceNameConflict).LastTransitionTime.Time.Equal(noon))
}

func TestStatusKeepsWhatIsNotOurs(t *testing.T) {
	c := class("l40s", "")
	c.Status.Capacity = &v1alpha1.Capacity{Free: 2}
	c.Status.Conditions = []metav1.Condition{{Type: "Other", Status: metav1.ConditionTrue}}
	status, _ := Status(c, Facts{Sources: sources()}, noon)
	assert.Equal(t, c.Status.Capacity, status.Capacity)
	assert.NotNil(t, meta.FindStatusCondition(status.Conditions, "Other"))
}

func TestStatusTakesTheCapacityThatIsToBePublished(t *testing.T) {
	c := class("l40s", "")
	c.Status, _ = Status(c, Facts{Sources: sources()}, noon)
	assert.Nil(t, c.Status.Capacity, "what is not counted yet is not none")
	none, changed := Status(c, Facts{Sources: sources(), Capacity: &v1alpha1.Capacity{}}, noon)
	assert.True(t, changed)
	assert.Equal(t, &v1alpha1.Capacity{}, none.Capacity)
	c.Status = none
	_, changed = Status(c, Facts{Sources: sources(), Capacity: &v1alpha1.Capacity{}}, noon)
	assert.False(t, changed)
	some, changed := Status(c, Facts{Sources: sources(), Capacity: &v1alpha1.Capacity{Free: 1}}, noon)
	assert.True(t, changed)
	assert.EqualValues(t, 1, some.Capacity.Free)
}

func TestAFaultIsReportedWhenItIsNewOnly(t *testing.T) {
	c := class("l40s", "token")
	token := sources(source("token", "not-a-real-token"))
	judge := func(facts Facts) v1alpha1.GPUClassStatus {
		status, _ := Status(c, facts, noon)
		return status
	}
	good := judge(Facts{Sources: token})
	missing := judge(Facts{Sources: sources()})
	blocked := judge(Facts{Sources: token, Blocked: []string{"a"}})
	more := judge(Facts{Sources: token, Blocked: []string{"a", "b"}})
	conflict := judge(Facts{Holder: "old", Sources: token})

	reasons := func(before, after v1alpha1.GPUClassStatus) (reasons []string) {
		for _, fault := range Faults(before, after) {
			reasons = append(reasons, fault.Reason)
		}
		return reasons
	}
	assert.Empty(t, reasons(v1alpha1.GPUClassStatus{}, good))
	assert.Empty(t, reasons(missing, good))
	assert.Empty(t, reasons(missing, missing))
	assert.Equal(t, []string{ReasonSecretNotFound}, reasons(good, missing))
	assert.Equal(t, []string{ReasonCopiesBlocked}, reasons(good, blocked))
	assert.Equal(t, []string{ReasonCopiesBlocked}, reasons(blocked, more))
	assert.Equal(t, []string{ReasonResourceNameTaken}, reasons(v1alpha1.GPUClassStatus{}, conflict))
}
