// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/budget-checker/internal/budget"
)

const (
	gpuBudgets = "gpubudgets"
	// marksName names the ConfigMap that knows every ledger there is: by
	// namespace, <UID of the namespace>/<UID of the ledger>. It tells a ledger
	// that was lost from one that never was.
	marksName = "budget-checker-ledgers"
)

var _ budget.Ledgers = (*Ledgers)(nil)

// Ledgers keeps ledgers as GPUBudgets.
type Ledgers struct {
	clients   *Clients
	namespace string // of the marks
	log       *zap.Logger

	mu    sync.Mutex
	marks map[string]string // as far as they are known
}

// NewLedgers returns the ledgers, whose marks are in the namespace.
func NewLedgers(clients *Clients, namespace string, log *zap.Logger) *Ledgers {
	return &Ledgers{clients: clients, namespace: namespace, log: log, marks: map[string]string{}}
}

// Get returns the namespace's ledger as it is now.
func (l *Ledgers) Get(ctx context.Context, namespace string) (*v1alpha1.GPUBudget, error) {
	ledger := &v1alpha1.GPUBudget{}
	err := l.clients.gpu.Get().Namespace(namespace).Resource(gpuBudgets).Name(v1alpha1.GPUBudgetName).Do(ctx).Into(ledger)
	return ledger, wrap("read", namespace, err)
}

// Update writes the ledger's status, if it still is of the same version.
func (l *Ledgers) Update(ctx context.Context, ledger *v1alpha1.GPUBudget) (*v1alpha1.GPUBudget, error) {
	updated := &v1alpha1.GPUBudget{}
	err := l.clients.gpu.Put().Namespace(ledger.Namespace).Resource(gpuBudgets).Name(ledger.Name).SubResource("status").Body(typed(ledger)).Do(ctx).Into(updated)
	return updated, wrap("write", ledger.Namespace, err)
}

// Ensure returns the namespace's ledger, which it makes if there is none. One
// that stands in for a lost one gets a barrier before it is marked, and no
// replica uses one that is not marked.
func (l *Ledgers) Ensure(ctx context.Context, namespace string) (*v1alpha1.GPUBudget, error) {
	owner := &corev1.Namespace{}
	if err := l.clients.core.Get().Resource("namespaces").Name(namespace).Do(ctx).Into(owner); err != nil {
		return nil, fmt.Errorf("read namespace %s: %w", namespace, err)
	}
	ledger, err := l.Get(ctx, namespace)
	if apierrors.IsNotFound(err) {
		if owner.DeletionTimestamp != nil { // nothing can be created there any more
			return nil, apierrors.NewNotFound(corev1.Resource("namespaces"), namespace)
		}
		ledger, err = l.create(ctx, namespace)
	}
	if err != nil {
		return nil, err
	}
	marks, err := l.readMarks(ctx)
	if err != nil {
		return nil, err
	}
	mark := string(owner.UID) + "/" + string(ledger.UID)
	if l.known(namespace, marks) == mark && marks.Data[namespace] == mark {
		return ledger, nil
	}
	if strings.HasPrefix(l.known(namespace, marks), string(owner.UID)+"/") && ledger.Status.Barrier == "" {
		ledger.Status.Barrier = uuid.NewUUID()
		l.log.Warn("a ledger was lost: nothing is raised until writes in flight have ended", zap.String("namespace", namespace))
		if ledger, err = l.Update(ctx, ledger); err != nil {
			return nil, err
		}
	}
	marks.Data[namespace] = mark
	if err := l.writeMarks(ctx, marks); err != nil {
		return nil, err
	}
	return ledger, nil
}

func (l *Ledgers) create(ctx context.Context, namespace string) (*v1alpha1.GPUBudget, error) {
	ledger := typed(&v1alpha1.GPUBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.GPUBudgetName}})
	created := &v1alpha1.GPUBudget{}
	err := l.clients.gpu.Post().Namespace(namespace).Resource(gpuBudgets).Body(ledger).Do(ctx).Into(created)
	if apierrors.IsAlreadyExists(err) { // another replica was quicker
		return l.Get(ctx, namespace)
	}
	return created, wrap("create", namespace, err)
}

func typed(ledger *v1alpha1.GPUBudget) *v1alpha1.GPUBudget {
	ledger.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUBudget"}
	return ledger
}

func wrap(verb, namespace string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s the gpubudget of namespace %s: %w", verb, namespace, err)
}
