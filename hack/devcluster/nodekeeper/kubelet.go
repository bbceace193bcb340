// SPDX-License-Identifier: Apache-2.0

package nodekeeper

import (
	"context"
	"fmt"
	"log"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// beatInterval lies well within the time after which the node controller
	// takes a node for dead (50 s).
	beatInterval  = 10 * time.Second
	leaseDuration = 40 // seconds, as kubelets write it
)

// beat keeps every node ready. What a node has is left as it is.
func (k *keeper) beat(ctx context.Context) {
	for {
		if err := k.beatOnce(ctx); err != nil {
			log.Printf("heartbeat: %v", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(beatInterval):
		}
	}
}

func (k *keeper) beatOnce(ctx context.Context) error {
	nodes, err := k.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, node := range nodes.Items {
		patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","lastHeartbeatTime":%q}]}}`, now())
		if _, err := k.kube.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
		if err := k.renew(ctx, node.Name); err != nil {
			return err
		}
	}
	return nil
}

func (k *keeper) renew(ctx context.Context, node string) error {
	leases := k.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	renewed, seconds := metav1.NowMicro(), int32(leaseDuration)
	lease, err := leases.Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: node},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
		}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	lease.Spec.RenewTime = &renewed
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	return err
}

// syncPod does what a kubelet would for a pod that is bound to its node.
func (k *keeper) syncPod(ctx context.Context, key string) error {
	object, exists, err := k.pods.GetIndexer().GetByKey(key)
	if err != nil || !exists {
		return err
	}
	pod := object.(*corev1.Pod)
	switch {
	case pod.Spec.NodeName == "":
		return nil
	case pod.DeletionTimestamp != nil:
		return k.removePod(ctx, pod)
	case pod.Status.Phase == corev1.PodPending:
		return k.startPod(ctx, pod)
	}
	return nil
}

// startPod reports the pod as running once its Secrets exist: without them a
// kubelet would not mount its volumes.
func (k *keeper) startPod(ctx context.Context, pod *corev1.Pod) error {
	for _, volume := range pod.Spec.Volumes {
		if volume.Secret == nil || volume.Secret.Optional != nil && *volume.Secret.Optional {
			continue
		}
		if _, err := k.kube.CoreV1().Secrets(pod.Namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("mount volume %s: %w", volume.Name, err)
		}
	}
	pod = pod.DeepCopy()
	started := metav1.Now()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.StartTime = &started
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: started})
	}
	running := true
	for _, container := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name:  container.Name,
			Image: container.Image,
			// KubeVirt migrates a VM only when it knows its images' digests.
			ImageID: container.Image + "@sha256:" + strings.Repeat("0", 64),
			Ready:   true,
			Started: &running,
			State:   corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}},
		})
	}
	_, err := k.kube.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // a newer event comes
		return nil
	}
	return err
}

// removePod lets go of a pod that was asked to end, after virt-handler has
// reported that its VM did.
func (k *keeper) removePod(ctx context.Context, pod *corev1.Pod) error {
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "VirtualMachineInstance" {
		if err := k.endVMI(ctx, pod.Namespace+"/"+owner.Name); err != nil {
			return err
		}
	}
	immediately := int64(0)
	err := k.kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &immediately,
		Preconditions:      metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
