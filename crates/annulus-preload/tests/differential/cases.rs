//! One test for each case of the programs. A test below checks that the names here are equal to those in the programs.

use std::path::Path;

use super::{KNOWN, Program, compare};

/// Defines a test for each case of a program.
macro_rules! cases {
    ($program:ident, $names:ident = $kind:ident($file:literal): $(fn $case:ident;)*) => {
        pub(crate) static $program: Program = Program::$kind($file);
        static $names: &[&str] = &[$(stringify!($case)),*];
        $(
            #[test]
            fn $case() {
                compare(&$program, stringify!($case));
            }
        )*
    };
}

cases! { TRIGGERS, TRIGGERS_CASES = c("triggers"):
    fn level_is_reported_until_all_is_read;
    fn level_is_reported_by_a_wait_with_a_zero_timeout;
    fn writable_level_is_reported_each_time;
    fn an_edge_is_reported_once;
    fn bytes_that_join_unread_ones_are_a_new_edge;
    fn bytes_behind_many_unread_ones_are_a_new_edge;
    fn an_edge_of_both_directions_reports_all_that_holds;
    fn a_change_reports_an_edge_again;
    fn oneshot_is_silent_until_it_is_armed_again;
    fn oneshot_that_fired_hides_even_a_reset;
    fn oneshot_is_reported_once_though_it_was_handed_back;
    fn oneshot_reports_all_pending_events;
    fn a_change_after_a_hand_back_is_reported;
    fn a_shutdown_after_a_hand_back_is_an_edge;
    fn a_hang_up_behind_unrequested_events_is_reported;
    fn a_reset_before_it_is_added_is_returned_by_writes;
    fn exclusive_members_report_and_refuse_changes;
    fn a_member_taken_out_can_be_an_exclusive_one;
    fn a_oneshot_that_fired_can_be_rearmed;
    fn the_peers_fin_is_read_and_hung_up;
    fn hang_up_alone_is_reported_before_the_bytes_are_read;
    fn both_ends_shut_is_a_hang_up;
    fn a_local_shutdown_is_reported;
    fn a_reset_is_an_error_and_a_hang_up;
    fn the_error_of_a_reset_can_be_queried_once;
    fn bytes_before_a_reset_are_read_first;
    fn bytes_and_a_reset_between_two_waits_are_both_reported;
    fn no_interest_still_reports_a_reset;
    fn an_edge_of_a_reset_is_reported_once;
    fn a_member_taken_out_reports_nothing_and_loses_nothing;
    fn a_member_taken_out_can_be_read_with_blocking;
    fn a_small_event_buffer_reaches_all_members;
    fn edges_beyond_the_buffer_are_reported_by_the_next_call;
    fn a_number_that_is_used_again_is_a_new_member;
    fn event_data_is_returned_unchanged;
    fn urgent_bytes_are_reported_separately;
    fn urgent_bytes_inline_are_read_in_order;
    fn masks_of_poll_are_reported_as_requested;
    fn many_exchanges;
}

cases! { SINGLE_THREAD, SINGLE_THREAD_CASES = c("single_thread"):
    fn a_quick_server_has_one_thread;
    fn a_server_may_leave_its_namespaces;
    fn a_process_ends_with_its_only_thread;
    fn a_blocking_call_sends_the_response_first;
    fn a_repeated_call_sends_the_response;
    fn waits_of_a_program_that_serves_nothing_are_unchanged;
}

cases! { MEMBERS, MEMBERS_CASES = c("members"):
    fn control_errors_are_unchanged;
    fn wait_errors_are_unchanged;
    fn members_of_all_kinds_are_reported_together;
    fn a_number_that_was_no_stream_is_served_as_one;
    fn a_hang_up_of_unix_sockets_is_reported;
    fn the_event_of_a_removal_is_ignored;
    fn sets_can_be_members_of_sets;
    fn a_set_can_be_polled;
    fn bytes_received_before_are_reported_by_a_later_set;
    fn a_member_moves_to_a_new_set_with_its_bytes;
    fn a_member_that_moved_ends_without_a_wait_on_its_first_set;
    fn a_member_of_a_set_that_the_kernel_serves_stays_with_it;
    fn one_socket_can_be_in_two_sets;
    fn a_oneshot_member_of_two_sets_stays_one_when_its_bytes_are_read;
    fn a_set_for_one_wait_is_not_served;
    fn a_connection_of_a_closed_set_is_served_in_another;
    fn a_served_set_takes_little_memory;
    fn members_of_the_first_waits_are_reported_as_later_ones;
    fn no_set_has_a_record_of_closed_sockets_that_were_in_two_sets;
    fn an_edge_that_was_reported_is_not_reported_by_a_ring;
    fn members_whose_numbers_were_used_before_are_reported_once;
    fn a_full_socket_that_a_ring_takes_over_is_reported_when_it_has_room;
    fn a_socket_can_move_between_sets;
    fn a_polled_set_reports_bytes_received_in_another_set;
    fn many_members_are_handed_back_together;
    fn a_duplicate_of_a_set_is_the_same_set;
    fn a_duplicate_of_a_member_is_another_member;
    fn a_closed_number_whose_duplicate_lives_is_still_reported;
    fn buffered_bytes_of_a_closed_number_are_reported_of_its_duplicate;
    fn buffered_bytes_of_a_closed_number_are_reported_by_each_set;
    fn a_oneshot_member_whose_number_another_file_has_is_reported_once;
    fn buffered_bytes_of_a_closed_number_are_reported_in_another_thread;
    fn a_duplicate_onto_its_own_connection_changes_nothing;
    fn a_blocking_socket_can_be_a_member;
    fn a_member_that_becomes_non_blocking_is_served;
    fn a_member_that_becomes_non_blocking_later_is_reported_once;
    fn a_blocking_member_that_a_wait_may_have_reported_stays_with_the_kernel;
    fn a_member_that_could_not_be_served_is_not_added_again;
    fn a_member_that_was_not_connected_is_not_added_again;
    fn a_set_that_is_closed_leaves_its_members_whole;
    fn closed_sets_and_members_leave_no_descriptor;
    fn a_hundred_members_are_reported_once_each;
    fn the_order_of_single_arrivals_is_kept;
    fn connections_come_one_by_one;
    fn connections_that_were_closed_do_not_count;
    fn reading_into_unmapped_memory_fails_and_loses_no_bytes;
    fn writing_from_unmapped_memory_fails;
}

cases! { WAITS, WAITS_CASES = c("waits"):
    fn a_timeout_is_never_early;
    fn a_wait_in_a_burst_of_connections_ends_as_any_other;
    fn a_spurious_wakeup_does_not_shorten_a_wait;
    fn bad_timeouts_are_refused;
    fn a_buffer_for_one_event_suffices_for_a_polled_set;
    fn a_wait_without_end_is_ended_by_bytes;
    fn a_signal_ends_a_wait;
    fn a_handler_may_end_the_set_that_it_interrupts;
    fn a_mask_lets_a_signal_in_for_the_wait_only;
    fn a_wait_with_a_zero_timeout_lets_no_signal_in;
    fn a_mask_keeps_a_signal_out_of_the_wait;
    fn signals_can_be_members;
    fn a_handler_may_write_during_the_wait;
    fn a_handler_may_read;
    fn handlers_that_write_at_any_moment_tear_nothing;
    fn a_handler_may_jump_out_of_a_wait;
    fn connections_end_after_a_jump_out_of_a_wait;
    fn a_handler_may_jump_out_of_the_first_call_of_a_function;
    fn a_handler_may_jump_out_of_any_call_at_any_moment;
    fn a_stop_and_its_end_interrupt_a_wait;
    fn a_signal_between_waits_does_not_end_them;
    fn an_empty_set_waits_for_its_timeout;
    fn the_end_of_a_set_interrupts_no_later_wait;
}

cases! { RECEIVING, RECEIVING_CASES = c("receiving"):
    fn every_call_that_receives_takes_the_next_bytes;
    fn calls_with_checks_are_the_same_calls;
    fn a_buffer_that_is_too_small_for_a_checked_call_ends_the_program;
    fn peeking_takes_nothing;
    fn peeking_returns_no_more_than_there_is_to_read;
    fn bytes_that_arrive_later_are_found_by_reads_alone;
    fn peeks_and_parts_go_on_behind_buffered_bytes;
    fn a_peek_returns_all_of_a_large_message;
    fn bytes_that_were_all_read_are_not_reported_again;
    fn the_count_of_waiting_bytes_is_whole;
    fn receive_flags_have_their_usual_effect;
    fn calls_of_length_zero_return;
    fn many_parts_and_too_many;
    fn addresses_and_control_bytes_are_left_as_a_stream_leaves_them;
    fn options_that_add_control_bytes_are_honoured;
    fn a_low_water_mark_holds_reports_back;
    fn a_low_water_mark_reports_all_events_of_an_ended_connection_again;
    fn a_reset_after_a_large_transfer_is_reported;
    fn the_end_comes_before_a_later_reset;
    fn a_reset_behind_unread_bytes_fails_writes_after_a_oneshot_report;
    fn a_reset_behind_unread_bytes_is_reported_to_a_program_that_pauses;
    fn a_time_limit_on_a_blocking_read_holds;
    fn a_large_stream_arrives_whole;
    fn a_reader_that_stops_stops_its_sender;
    fn messages_of_datagrams_pass;
    fn reads_of_other_descriptors_are_unchanged;
    fn every_flag_on_a_served_connection;
    fn every_flag_on_a_connection_that_was_handed_back;
    fn every_flag_on_a_blocking_connection;
    fn every_flag_on_a_removed_connection;
    fn every_flag_on_a_removed_and_blocking_connection;
    fn a_time_limit_ends_a_wait_for_all;
    fn a_wait_for_all_has_one_time_limit;
    fn a_peek_that_waits_for_all_has_one_time_limit;
    fn bytes_that_another_thread_takes_end_no_wait_for_all;
    fn a_wait_for_all_ends_at_urgent_bytes_and_at_the_end;
}

cases! { SENDING, SENDING_CASES = c("sending"):
    fn every_sending_call_keeps_its_order;
    fn an_address_is_ignored_by_a_stream;
    fn a_written_buffer_may_be_reused_immediately;
    fn a_call_that_is_refused_ends_no_connection;
    fn empty_writes_return;
    fn parts_in_number_and_too_many;
    fn messages_in_number_and_too_many;
    fn a_write_after_our_shutdown_breaks_the_pipe;
    fn a_write_to_a_peer_that_reset_fails_and_then_breaks;
    fn a_write_to_a_peer_that_closed_is_reset;
    fn a_full_peer_is_not_written_until_it_reads;
    fn a_send_to_an_address_that_did_not_fit_is_waited_for;
    fn twenty_mib_reach_a_slow_reader;
    fn large_and_small_writes_keep_their_order;
    fn deferred_output_stays_before_later_writes;
    fn calls_of_all_kinds_keep_their_order_to_a_full_peer;
    fn a_ring_that_is_lost_takes_no_bytes_with_it;
    fn a_program_that_lost_its_ring_can_go_on_writing_and_forking;
    fn many_writes_leave_without_a_wait;
    fn the_end_of_a_file_is_not_a_full_send_buffer;
    fn files_are_sent_in_order;
    fn a_large_file_is_sent_as_the_peer_reads;
    fn splices_keep_their_order_in_both_directions;
    fn send_flags_have_their_usual_effect;
    fn bytes_that_wait_for_more_arrive_in_order;
    fn bytes_that_wait_for_more_leave_with_them;
    fn bytes_written_before_a_cork_do_not_wait;
    fn an_urgent_byte_keeps_its_order;
    fn control_bytes_of_a_message_are_checked;
    fn writes_to_other_descriptors_are_unchanged;
}

cases! { PIPES, PIPES_CASES = c("pipes"):
    fn a_full_pipe_takes_nothing_and_does_not_wait;
    fn more_bytes_than_a_pipe_has_room_for_arrive_in_parts;
    fn a_full_pipe_is_waited_for_and_others_are_served;
    fn a_wait_for_a_pipe_is_ended_by_a_signal_or_a_cancel;
    fn a_wait_for_a_pipe_goes_on_after_a_handler_that_restarts_calls;
    fn a_pipe_without_a_reader_is_broken;
    fn a_reset_is_returned_by_calls_that_splice;
    fn calls_that_splice_nothing_lose_nothing;
    fn pipes_between_two_connections_keep_the_order;
}

cases! { PRIVATE_FDS, PRIVATE_FDS_CASES = c("private_fds"):
    fn a_thread_that_unshares_its_descriptors_uses_the_same_numbers;
    fn a_thread_of_such_a_thread_uses_the_same_numbers;
    fn a_thread_closes_all_its_own_descriptors;
    fn a_thread_that_served_before_goes_on;
    fn a_process_of_one_thread_is_served_on;
    fn a_clone_with_its_own_descriptors_disturbs_nothing;
}

cases! { CLOSING, CLOSING_CASES = c("closing"):
    fn written_bytes_arrive_before_the_end;
    fn a_socket_closed_with_deferred_output_sends_it_first;
    fn a_number_closed_with_deferred_output_can_be_reused;
    fn closing_the_set_delivers_deferred_output;
    fn closing_a_shared_set_delivers_deferred_output;
    fn thousands_closed_at_once_send_all_bytes;
    fn a_connection_closed_with_deferred_output_ends_while_a_child_lives;
    fn data_for_a_closed_connection_resets_it;
    fn unread_bytes_make_the_end_a_reset;
    fn unread_bytes_make_the_end_a_reset_without_a_wait;
    fn a_response_to_the_only_request_comes_with_the_end;
    fn a_response_to_the_only_request_comes_before_a_reset;
    fn linger_of_zero_is_a_reset;
    fn linger_waits_until_all_has_arrived;
    fn a_shutdown_follows_written_bytes;
    fn a_shutdown_of_both_directions_follows_deferred_output;
    fn a_shutdown_for_reading_keeps_received_bytes;
    fn shutdown_errors_are_unchanged;
    fn closing_a_range_sends_written_bytes;
    fn a_range_to_the_end_leaves_a_program_that_works;
    fn all_numbers_closed_one_by_one_leave_a_program_that_works;
    fn a_set_works_on_though_all_other_numbers_were_closed;
    fn a_closed_number_is_bad_in_every_call;
    fn a_closed_number_is_the_next_to_be_used;
    fn a_closed_number_is_free_for_any_call;
    fn a_closed_number_is_free_where_none_are_left;
    fn a_number_closed_with_deferred_output_is_free;
    fn closing_the_set_lets_writes_arrive;
    fn closed_sets_leave_no_memory;
    fn connections_open_and_close;
    fn exit_sends_written_bytes;
    fn exit_ends_all_connections;
    fn abort_sends_written_bytes;
    fn exit_waits_for_deferred_output_of_closed_connections;
    fn an_abort_of_others_is_an_abort;
    fn exit_handlers_run;
}

cases! { DEFERRED_OUTPUT, DEFERRED_OUTPUT_CASES = c("deferred_output"):
    fn deferred_output_is_sent_during_a_poll;
    fn deferred_output_is_sent_during_a_poll_of_another_file;
    fn deferred_output_is_sent_during_a_select;
    fn deferred_output_is_sent_during_a_blocking_read;
    fn deferred_output_is_sent_while_the_program_polls_without_waiting;
    fn deferred_output_is_sent_during_a_wait_on_another_set;
    fn deferred_output_is_sent_during_a_join;
    fn deferred_output_is_sent_after_a_shutdown;
    fn deferred_output_is_sent_after_a_close;
    fn deferred_output_is_sent_after_removal_from_its_set;
    fn a_blocking_write_comes_after_deferred_output;
    fn every_blocking_call_waits_for_deferred_output;
    fn a_removed_member_whose_socket_was_full_is_reported_as_writable;
    fn a_time_limit_ends_a_write_behind_deferred_output;
    fn a_reset_ends_a_blocking_write_behind_deferred_output;
    fn a_signal_ends_a_blocking_write_behind_deferred_output_or_does_not;
    fn a_child_writes_behind_deferred_output;
    fn a_process_that_gets_a_connection_writes_behind_deferred_output;
    fn deferred_output_is_sent_when_the_thread_of_its_set_has_ended;
    fn deferred_output_is_sent_before_the_program_ends;
    fn deferred_output_of_many_is_sent_whichever_thread_waits;
    fn many_closed_with_deferred_output_in_one_round_get_all_bytes;
    fn a_close_that_resets_does_so_at_once;
    fn a_lingering_close_blocks_no_other_connection;
}

cases! { IDLE_WAITS, IDLE_WAITS_CASES = c("idle_waits"):
    fn an_end_that_was_read_is_waited_through;
    fn an_end_that_was_not_read_is_waited_through;
    fn an_end_behind_much_that_is_unread_is_waited_through;
    fn an_end_while_the_peer_does_not_read_is_waited_through;
    fn ends_of_both_sides_are_waited_through;
    fn the_end_after_deferred_output_is_waited_through;
    fn no_thread_wakes_up_where_nothing_happens;
    fn events_after_an_end_are_reported;
}

cases! { DESCRIPTORS, DESCRIPTORS_CASES = c("descriptors"):
    fn a_duplicate_shares_the_stream;
    fn a_duplicate_of_a_handed_back_connection_shares_its_end;
    fn the_error_of_a_reset_is_returned_by_any_number;
    fn a_duplicate_overtakes_no_deferred_output;
    fn a_duplicate_from_before_the_first_add_shares_the_stream;
    fn a_duplicate_of_an_inherited_connection_shares_the_stream;
    fn duplication_errors_are_unchanged;
    fn a_duplicate_over_a_member_closes_the_member;
    fn blocking_can_be_switched_on_and_off;
    fn queries_of_queue_lengths_succeed;
    fn bytes_that_are_not_acknowledged_are_counted;
    fn options_can_be_set_and_read;
    fn a_served_socket_can_be_polled;
    fn waiting_in_poll_lets_writes_leave;
    fn a_served_socket_can_be_selected;
    fn a_served_socket_with_a_high_number_can_be_selected;
    fn a_limit_of_no_descriptors_hides_no_writability;
    fn poll_and_select_of_others_are_untouched;
    fn a_socket_passed_on_goes_on_in_both_processes;
    fn a_client_passed_on_before_its_add_goes_on_in_both_processes;
    fn a_socket_passed_on_brings_its_bytes;
    fn connections_are_passed_on_whole_after_the_first_one;
    fn a_set_that_is_passed_on_reports_its_members;
    fn a_set_lists_its_members_in_proc;
    fn a_socket_that_was_passed_to_us_is_served;
    fn running_out_of_numbers_is_reported_and_survived;
    fn a_low_limit_from_the_start_is_enough;
    fn a_low_limit_at_the_start_is_enough;
    fn a_filter_of_calls_for_many_numbers_leaves_all_numbers_to_the_program;
    fn every_number_below_the_limit_is_the_programs;
    fn files_get_the_last_numbers_of_a_busy_server;
    fn many_sets_leave_numbers_to_the_program;
    fn numbers_for_deferred_output_are_free_afterwards;
    fn a_limit_that_is_raised_is_no_obstacle;
    fn a_program_gets_the_same_numbers;
    fn a_ring_is_made_with_few_calls;
    fn any_low_number_can_be_chosen;
    fn a_file_that_took_any_number_is_the_programs;
}

cases! { THREADS, THREADS_CASES = c("threads"):
    fn another_thread_may_read_and_write;
    fn another_thread_reads_before_there_is_a_ring;
    fn a_set_passes_through_once_other_threads_use_all_its_connections;
    fn another_thread_may_wait;
    fn a_set_may_be_made_by_one_thread_and_run_by_another;
    fn a_write_of_another_leaves_while_the_owner_sleeps;
    fn a_member_may_be_added_while_the_owner_sleeps;
    fn members_may_be_changed_and_taken_while_the_owner_sleeps;
    fn a_member_may_be_closed_while_the_owner_sleeps;
    fn a_member_may_be_closed_while_the_owner_is_busy;
    fn a_listener_that_another_thread_closes_leaves_its_port;
    fn a_listener_of_a_thread_that_has_ended_leaves_its_port;
    fn a_worker_may_arm_oneshot_again_while_the_owner_sleeps;
    fn another_thread_wakes_the_owner_by_an_eventfd;
    fn several_threads_may_share_a_set;
    fn each_thread_may_have_its_set;
    fn threads_that_set_no_new_privileges_are_served;
    fn a_socket_may_move_to_another_threads_set;
    fn a_thread_that_sleeps_can_be_cancelled;
    fn a_thread_can_be_cancelled_at_any_moment_of_a_wait;
    fn another_thread_uses_a_connection_after_a_jump;
    fn a_thread_that_disabled_cancellation_sleeps_on;
    fn a_handler_may_end_the_waiting_thread;
    fn a_thread_that_reuses_an_id_is_another;
    fn a_thread_that_ends_leaves_its_set_to_others;
}

cases! { SEQUENCES, SEQUENCES_CASES = c("sequences"):
    fn a_number_reused_before_the_first_wait_is_the_last_owners;
    fn lines_that_are_written_without_a_wait_leave_one_by_one;
    fn another_thread_may_reuse_the_number_that_was_closed;
    fn a_listener_gets_its_share_of_a_buffer_for_one_event;
    fn an_edge_that_came_before_a_duplicate_is_reported;
    fn an_edge_that_comes_after_a_duplicate_is_reported;
    fn writability_is_reported_though_data_came_before;
    fn two_threads_may_exchange_sockets_between_their_sets;
    fn buffered_bytes_are_reported_by_a_later_set;
    fn a_number_that_a_stream_has_closed_is_the_next_owners;
    fn a_stream_reads_bytes_received_before_fdopen;
    fn a_write_only_stream_leaves_received_bytes;
    fn streams_of_other_files_are_untouched;
}

cases! { PROCESSES, PROCESSES_CASES = c("processes"):
    fn a_child_that_closes_everything_disturbs_nothing;
    fn a_child_writes_to_a_connection_that_its_parent_has_closed;
    fn a_child_may_read_and_write_what_it_inherits;
    fn bytes_that_were_reported_are_read_by_one_of_two_processes;
    fn a_child_may_wait_in_the_set_it_inherits;
    fn a_child_reports_no_edge_again;
    fn a_oneshot_member_of_an_inherited_set_is_reported_by_one_process;
    fn a_child_may_serve_with_a_set_of_its_own;
    fn a_child_serves_no_connection_that_its_parent_shared;
    fn a_connection_ends_though_an_older_child_lives;
    fn a_closed_number_is_reported_while_a_child_has_its_connection;
    fn a_killed_process_ends_its_connections_though_its_child_lives;
    fn a_started_program_inherits_the_stream;
    fn exec_passes_on_buffered_bytes;
    fn exec_passes_on_bytes_that_have_just_arrived;
    fn an_exec_that_fails_changes_nothing;
    fn every_way_to_start_a_program_works;
    fn a_daemon_goes_on_serving;
    fn a_parent_that_reads_no_more_takes_no_bytes;
    fn a_program_may_give_up_its_rights;
    fn a_program_that_may_lock_no_memory_runs_as_before;
    fn a_program_that_may_start_no_thread_sends_all_bytes;
    fn a_program_may_lock_all_its_memory_within_a_limit;
    fn a_program_may_move_to_an_empty_root;
    fn a_program_runs_though_a_filter_refuses_rings_from_the_start;
    fn a_program_runs_though_a_later_filter_refuses_rings;
    fn a_filter_that_kills_for_rings_from_the_start_is_not_triggered;
    fn a_later_filter_that_kills_for_rings_is_not_triggered;
    fn a_program_runs_under_an_earlier_filter;
    fn a_profile_that_refuses_rings_lets_a_program_run;
    fn a_profile_that_allows_rings_lets_a_program_be_served;
    fn a_thread_without_new_privileges_is_served_under_an_earlier_filter;
    fn a_profile_that_kills_for_rings_kills_no_program;
    fn a_probe_of_a_filter_is_not_the_first_process_of_a_namespace;
    fn a_program_without_a_stdout_is_not_written_to;
    fn a_stderr_without_a_reader_ends_no_program;
    fn a_limit_on_the_size_of_files_ends_no_program;
}

cases! { TERMINATION, TERMINATION_CASES = c("termination"):
    fn a_child_made_in_any_way_sends_nothing_of_its_parents;
    fn a_child_that_libc_makes_writes_behind_its_parent;
    fn a_child_made_in_any_way_may_serve;
    fn a_child_in_the_same_memory_may_close_its_own_descriptors;
    fn every_way_to_end_sends_written_bytes;
    fn bytes_that_a_handler_writes_before_the_end_arrive;
    fn signals_that_do_not_end_the_process_are_unchanged;
    fn a_query_about_filters_changes_nothing;
    fn an_unhooked_filter_after_no_new_privileges_kills_no_process;
    fn a_filter_set_by_libcs_syscall_is_detected_first;
    fn an_unhooked_filter_during_the_checks_kills_no_process;
    fn an_unhooked_filter_beside_an_earlier_one_kills_no_process;
    fn a_strict_filter_has_nothing_to_forbid;
    fn a_wait_under_a_strict_filter_ends_normally;
}

cases! { ENTRY_POINTS, ENTRY_POINTS_CASES = c("entry_points"):
    fn a_raw_close_follows_written_bytes;
    fn raw_sending_calls_keep_their_order;
    fn raw_calls_that_receive_take_the_next_bytes;
    fn raw_waits_return_what_the_kernel_returns;
    fn raw_calls_on_descriptors_are_noticed;
    fn a_raw_exit_sends_written_bytes;
    fn a_raw_fork_sends_nothing_twice;
    fn raw_calls_of_all_other_kinds_pass;
    fn a_raw_call_is_no_cancellation_point;
    fn printing_keeps_its_order;
    fn printing_to_a_full_peer_overtakes_nothing;
    fn a_backtrace_keeps_its_order;
    fn vectors_with_flags_keep_their_order;
    fn functions_of_two_names_are_the_same;
    fn streams_and_children_of_other_names_are_the_same;
    fn a_dissolved_connection_passes_through;
    fn asynchronous_writes_keep_their_order;
}

cases! { LOOPS, LOOPS_CASES = c("loops"):
    fn accept_returns_the_peers_address;
    fn accept_errors_are_unchanged;
    fn a_peer_that_is_gone_is_accepted_with_its_address;
    fn bytes_that_came_before_the_set_are_reported;
    fn a_connect_that_takes_its_time_becomes_writable;
    fn a_connect_that_fails_is_an_error;
    fn a_socket_that_never_connected_hangs_up;
    fn a_client_that_connected_first_is_served;
    fn a_listener_that_is_shut_down_hangs_up;
    fn ipv6_is_served_alike;
    fn a_connection_goes_to_the_process_that_accepts;
    fn closing_a_listener_refuses_waiting_connections;
    fn a_level_server_serves_all_its_clients;
    fn an_edge_server_serves_all_its_clients;
    fn a_oneshot_server_serves_all_its_clients;
    fn a_server_of_pipelined_clients_serves_all;
    fn a_server_of_large_messages_serves_all;
}

cases! { OPTIONS, OPTIONS_CASES = c("options"):
    fn control_data_enabled_on_a_listener_comes_with_its_connections;
    fn an_option_of_a_listener_holds_for_those_it_accepts_from_then_on;
    fn an_option_of_a_listener_in_a_set_is_its_connections;
    fn an_option_that_others_gave_a_listener_is_its_connections;
    fn an_option_that_another_process_sets_on_a_listener_later_is_missed;
    fn an_inherited_listener_keeps_its_options;
    fn an_inherited_connection_keeps_its_options;
    fn a_client_that_enabled_control_data_gets_it;
    fn a_low_water_mark_of_a_listener_holds_reports_back;
    fn an_option_is_an_edge_if_it_wakes;
    fn a_peek_offset_is_inherited_from_the_listener;
    fn writability_is_reported_below_the_mark_of_unsent_bytes;
    fn writability_of_a_small_send_buffer_keeps_a_reserve;
    fn writability_of_a_large_send_buffer_keeps_no_reserve;
    fn urgent_bytes_of_a_listener_that_wants_them_inline_are_inline;
    fn a_program_signalled_for_urgent_bytes_reads_them;
    fn urgent_bytes_are_kept_after_the_first_urgent_read;
    fn an_urgent_read_covers_connections_of_other_threads;
    fn a_reset_caused_by_sending_at_a_hand_back_is_reported;
    fn the_urgent_mark_is_found_after_the_first_query;
    fn reading_urgent_bytes_of_one_connection_covers_the_others;
    fn members_with_priority_are_served_until_urgent_bytes_are_read;
    fn a_client_reads_urgent_bytes_after_its_first_request;
    fn urgent_bytes_that_the_program_never_announced_are_skipped;
    fn unread_urgent_bytes_are_not_in_the_stream;
    fn urgent_bytes_of_every_call_keep_their_order;
    fn an_urgent_byte_waits_for_deferred_output;
    fn reasons_are_those_of_the_program;
    fn a_program_signalled_for_input_reads_it;
    fn queued_bytes_are_included_in_tcp_info;
    fn unsent_bytes_are_counted;
    fn time_limits_are_for_calls_that_wait;
    fn harmless_options_can_be_set_on_served_connections;
    fn options_set_to_their_default_change_nothing;
    fn an_option_that_is_set_late_applies_from_then_on;
    fn an_option_that_was_set_late_applies_to_the_next_connection;
    fn a_stream_is_not_decrypted_behind_buffered_bytes;
    fn bytes_that_are_mapped_are_the_streams;
}

cases! { PROGRAM_RINGS, PROGRAM_RINGS_CASES = c("program_rings"):
    fn a_loop_without_its_ring_is_served;
    fn a_loop_without_its_ring_of_newer_kernels_is_served;
    fn a_loop_with_a_ring_for_files_only_is_served;
    fn rings_for_other_purposes_are_made;
    fn members_added_through_a_ring_are_reported;
    fn a_set_that_a_ring_polls_reports_its_members;
}

cases! { PYTHON, PYTHON_CASES = python("loops"):
    fn asyncio_serves_itself;
    fn asyncio_keeps_its_timers;
    fn each_selector_serves;
    fn a_bare_epoll_object_serves;
    fn threads_that_block_serve;
    fn http_is_served_by_threads;
    fn a_served_process_starts_others;
}

cases! { GO, GO_CASES = go("echo"):
    fn goroutines_serve_all_their_clients;
    fn goroutines_start_other_programs;
}

/// All programs, with the cases that are tests here.
pub(crate) static PROGRAMS: [(&Program, &[&str]); 22] = [
    (&TRIGGERS, TRIGGERS_CASES),
    (&SINGLE_THREAD, SINGLE_THREAD_CASES),
    (&MEMBERS, MEMBERS_CASES),
    (&WAITS, WAITS_CASES),
    (&RECEIVING, RECEIVING_CASES),
    (&SENDING, SENDING_CASES),
    (&PIPES, PIPES_CASES),
    (&PRIVATE_FDS, PRIVATE_FDS_CASES),
    (&CLOSING, CLOSING_CASES),
    (&DEFERRED_OUTPUT, DEFERRED_OUTPUT_CASES),
    (&IDLE_WAITS, IDLE_WAITS_CASES),
    (&DESCRIPTORS, DESCRIPTORS_CASES),
    (&THREADS, THREADS_CASES),
    (&SEQUENCES, SEQUENCES_CASES),
    (&PROCESSES, PROCESSES_CASES),
    (&TERMINATION, TERMINATION_CASES),
    (&ENTRY_POINTS, ENTRY_POINTS_CASES),
    (&LOOPS, LOOPS_CASES),
    (&OPTIONS, OPTIONS_CASES),
    (&PROGRAM_RINGS, PROGRAM_RINGS_CASES),
    (&PYTHON, PYTHON_CASES),
    (&GO, GO_CASES),
];

/// Returns the text of docs/reference/preload-cases.md.
fn list() -> String {
    let mut text = String::from(
        "# Cases that hold with and without the preload library\n\n\
         Generated from the differential tests (`crates/annulus-preload/tests/apps`); do not edit. Each case runs without\n\
         the library and with it, and both print the same bytes, events and errors. The cases marked *differs* are in\n\
         [Differences from a plain run](preload.md#differences-from-a-plain-run).\n",
    );
    for (program, cases) in PROGRAMS {
        text += &format!("\n## {}\n\n", program.name.replace('_', " "));
        for case in cases {
            let mark = if KNOWN.contains(case) {
                " *(differs)*"
            } else {
                ""
            };
            text += &format!("- {}{mark}\n", case.replace('_', " "));
        }
    }
    text
}

#[test]
fn the_reference_lists_exactly_the_cases() {
    let listed = include_str!("../../../../docs/reference/preload-cases.md");
    let expected = list();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload-cases.md");
    std::fs::write(&path, &expected).unwrap();
    assert!(
        listed == expected,
        "docs/reference/preload-cases.md differs from the cases: copy {} over it",
        path.display()
    );
}

#[test]
fn every_case_of_every_program_is_a_test() {
    for (program, tests) in PROGRAMS {
        let cases: Vec<&str> = program.cases().iter().map(|case| &*case.name).collect();
        assert!(
            cases.is_empty() || cases == tests,
            "{}: {cases:?}",
            program.name
        );
    }
}
